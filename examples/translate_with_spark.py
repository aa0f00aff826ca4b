"""Translate a corpus with Spark: spark-submit translate_with_spark.py corpus.parquet translated.

The input is Parquet with a column "text". The output has its columns and "translation".
"""

import sys
from collections.abc import Iterator

import pandas as pd
import torch
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from modeling_aiayn.translation import Translator


def translate(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Translate the rows of a partition. Each task loads the model, and has one thread."""
    torch.set_num_threads(1)
    translator = Translator.from_pretrained("aiayn-en-de", dtype="int8")
    for batch in batches:
        yield batch.assign(translation=translator(list(batch["text"])))


rows = SparkSession.builder.getOrCreate().read.parquet(sys.argv[1])
schema = StructType([*rows.schema, StructField("translation", StringType())])
rows.mapInPandas(translate, schema).write.parquet(sys.argv[2])
