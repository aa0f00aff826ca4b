"""generate(): with and without a cache, alone and in company, as long as the source asks for."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import small_model, warning_of_name
from datasets import Dataset
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StaticCache,
)
from transformers.generation import BaseStreamer

from modeling_aiayn import AiaynForCausalLM, AiaynForConditionalGeneration
from modeling_aiayn.inputs import CACHE_NAME

SOURCES = torch.tensor([[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2], [15, 2, 1, 1, 1, 1, 1]])


def rows(output):
    """Ids of each row without its padding."""
    return [[token for token in row if token != 1] for row in output.tolist()]


@pytest.mark.parametrize(
    "options", [{}, {"position_type": "learned"}, {"norm_first": True}], ids=str
)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_cache_changes_nothing(options, num_beams):
    model = small_model(**options)
    with_cache = model.generate(SOURCES, num_beams=num_beams)
    without = model.generate(SOURCES, num_beams=num_beams, use_cache=False)
    assert with_cache.tolist() == without.tolist()


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_logits_of_cached_steps_are_those_of_one_pass(model, name):
    """transformers 5.24 renamed past_key_values."""
    target = torch.tensor([[0, 15, 16, 17, 18, 19]]).expand(3, -1)
    expected = model(SOURCES, decoder_input_ids=target).logits
    mask = (SOURCES != 1).long()
    output = model(SOURCES, decoder_input_ids=target[:, :2], use_cache=True)
    pieces, cache = [output.logits], output.past_key_values
    for start, end in ((2, 3), (3, 6)):
        with warning_of_name(name):
            output = model(
                encoder_outputs=(output.encoder_last_hidden_state,),
                attention_mask=mask,
                decoder_input_ids=target[:, start:end],
                use_cache=True,
                **{name: cache},
            )
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_translation_does_not_depend_on_its_batch_mates(num_beams):
    model = small_model()
    together = rows(model.generate(SOURCES, num_beams=num_beams))
    for row, source in enumerate(SOURCES):
        alone = model.generate(source[source != 1][None], num_beams=num_beams)
        assert rows(alone) == [together[row]]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_padding_side_and_missing_mask_change_nothing(num_beams):
    model = small_model()
    expected = rows(model.generate(SOURCES, attention_mask=SOURCES != 1, num_beams=num_beams))
    assert rows(model.generate(SOURCES, num_beams=num_beams)) == expected
    left = torch.stack([torch.cat((row[row == 1], row[row != 1])) for row in SOURCES])
    assert rows(model.generate(left, num_beams=num_beams)) == expected


def test_one_beam_is_greedy(model):
    greedy = [[0]]
    source = SOURCES[1:2]
    while greedy[0][-1] != 2 and len(greedy[0]) < 40:
        logits = model(source, decoder_input_ids=torch.tensor(greedy)).logits
        greedy[0].append(logits[0, -1].argmax().item())
    assert rows(model.generate(source, num_beams=1, max_length=40)) == greedy


def never_ending(**options):
    """A model that would go on for ever."""
    model = small_model(lm_head_bias=True, **options)
    with torch.no_grad():
        model.lm_head.bias[2] = -1e4
    return model


@pytest.mark.parametrize("num_beams", [1, 2])
def test_without_a_length_each_output_goes_50_tokens_beyond_its_own_source(num_beams):
    output = rows(never_ending().generate(SOURCES, num_beams=num_beams))
    assert [len(row) - 1 for row in output] == [5 + 50, 7 + 50, 2 + 50]
    assert all(row[-1] == 2 for row in output)


def test_an_end_that_is_switched_off_is_not_forced():
    """By -1, as in the library; not the vocabulary's last id."""
    model = never_ending()
    output = model.generate(SOURCES, eos_token_id=-1)
    assert output.size(1) == 1 + 7 + 50
    assert not (output[2, 53:] == model.config.vocab_size - 1).all()


@pytest.mark.parametrize("flags", [{}, {"num_beams": 2}])
def test_a_padding_id_that_also_ends_texts_hides_no_end(flags):
    torch.manual_seed(0)
    model = small_model(pad_token_id=2)
    text = SOURCES[1:2]
    mask = torch.ones_like(text)
    target = torch.tensor([[0, 15, 16]])
    found, expected = (
        model(text, attention_mask=each, decoder_input_ids=target).logits for each in (None, mask)
    )
    assert torch.equal(found, expected)
    output = model.generate(text, max_new_tokens=6, **flags)
    assert torch.equal(output, model.generate(text, attention_mask=mask, max_new_tokens=6, **flags))


def test_the_limit_can_be_set_and_given_lengths_take_precedence():
    model = never_ending()
    output = rows(model.generate(SOURCES, max_tokens_beyond_source=3))
    assert [len(row) for row in output] == [9, 11, 6]
    assert model.generate(SOURCES, max_new_tokens=4).shape == (3, 5)
    assert model.generate(SOURCES, max_length=4).shape == (3, 4)
    config = GenerationConfig(max_new_tokens=6)
    assert model.generate(SOURCES, generation_config=config).shape == (3, 7)


def test_the_limit_counts_from_a_prefix():
    prefix = torch.tensor([[0, 20, 21]]).expand(3, -1)
    output = rows(never_ending().generate(SOURCES, decoder_input_ids=prefix))
    assert [len(row) for row in output] == [3 + 55, 3 + 57, 3 + 52]
    assert all(row[:3] == [0, 20, 21] for row in output)


def test_a_library_trainer_does_not_shorten_translations(tmp_path):
    """It writes max_length=20 into the model's configuration: into later batches and saved folders."""
    model = never_ending()
    examples = [{"input_ids": [5] * size + [2], "labels": [7, 8, 2]} for size in (3, 4, 5)]
    options = {"per_device_eval_batch_size": 1, "report_to": "none", "use_cpu": True}
    arguments = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, **options)
    trainer = Seq2SeqTrainer(model, arguments)
    predictions = trainer.predict(Dataset.from_list(examples)).predictions
    limits = [1 + len(row["input_ids"]) + 50 for row in examples]
    assert [(row != -100).sum() for row in predictions] == limits
    assert model.generation_config.max_length == 20
    trainer.save_model()
    loaded = AiaynForConditionalGeneration.from_pretrained(tmp_path)
    for row, limit in zip(examples, limits, strict=True):
        ids = torch.tensor([row["input_ids"]])
        assert loaded.generate(ids).size(1) == limit
        # The caller's own limit of 20 counts, however it is given.
        assert loaded.generate(ids, max_length=20).size(1) == 20
        assert loaded.generate(ids, GenerationConfig(max_length=20)).size(1) == 20


def test_a_length_of_20_that_a_user_sets_counts():
    model = never_ending()
    model.generation_config.max_length = 20
    assert model.generate(SOURCES).size(1) == 20
    model.generation_config.num_beams = 2
    assert model.generate(SOURCES).size(1) == 20


def test_a_minimum_raises_the_limit_of_every_sentence():
    """Without a minimum of its own, the shortest sentence would end before it."""
    model = never_ending()
    lengths = (SOURCES != 1).sum(-1)
    expected = [max(7, length + 2) for length in lengths.tolist()]
    for options in ({"min_new_tokens": 7}, {"min_length": 8}):
        output = model.generate(SOURCES, max_tokens_beyond_source=2, **options)
        assert [sum(token != 1 for token in row[1:]) for row in output.tolist()] == expected
        alone = model.generate(SOURCES[:1, : lengths[0]], max_tokens_beyond_source=2, **options)
        assert alone.size(1) == 1 + expected[0]


def test_a_minimum_raises_the_limit_of_a_language_model():
    model = small_model(AiaynForCausalLM)
    assert model.generate(SOURCES, min_new_tokens=30).size(1) == SOURCES.size(1) + 30


def test_what_a_configuration_says_of_generation_counts(batch):
    model = small_model(use_cache=False, output_hidden_states=True)
    assert model.generation_config.use_cache is False
    output = model.generate(batch["input_ids"], max_new_tokens=3)
    assert output.past_key_values is None
    assert len(output.decoder_hidden_states) == 3


def test_generation_config_is_saved_with_the_limit_and_without_20(model, tmp_path):
    model.save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.max_tokens_beyond_source == 50
    assert (saved.max_length, saved.max_new_tokens) == (None, None)
    assert (saved.decoder_start_token_id, saved.eos_token_id, saved.pad_token_id) == (0, 2, 1)


def test_a_learned_table_bounds_the_output():
    model = never_ending(position_type="learned", max_position_embeddings=9)
    assert model.generate(SOURCES).shape == (3, 10)
    assert model.generate(SOURCES, max_length=10).shape == (3, 10)
    with pytest.raises(ValueError, match="max_position_embeddings=9 positions"):
        model.generate(SOURCES, max_length=11)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 0.01}, {"suppress_tokens": [2]}], ids=str
)
def test_sampling_ends_at_the_limit_even_if_eos_is_ruled_out(options):
    model = small_model()
    torch.manual_seed(0)
    output = model.generate(SOURCES, do_sample=True, **options)
    lengths = (SOURCES != 1).sum(1).tolist()
    for row, length in zip(output.tolist(), lengths, strict=True):
        assert row.index(2) <= length + 50
        assert set(row[row.index(2) + 1 :]) <= {1}


@pytest.mark.parametrize("size", [7, 37])
def test_a_separate_target_vocabulary_is_decoded(size):
    """Smaller and larger than the source's; the scores of single tokens too."""
    model = small_model(decoder_vocab_size=size, lm_head_bias=True)
    with torch.no_grad():
        model.lm_head.bias[-2] += 9  # so that a late id is generated
    model.generation_config.length_penalty = 0.0
    options = {"num_beams": 2, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(SOURCES, **options, max_new_tokens=4)
    assert output.sequences.max() < size
    assert size == 7 or output.sequences.max() > 31
    each = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    torch.testing.assert_close(each.sum(-1), output.sequences_scores)


# --- what else generate() can do; the library's code, held to our caches and masks


def probabilities(model, source, output):
    """Log-probability of each generated token, by one pass without a cache."""
    scores = model(source[None], decoder_input_ids=output[None, :-1]).logits.log_softmax(-1)
    return scores[0].gather(-1, output[1:, None])[:, 0]


def test_sampling_draws_from_the_model_s_distribution(model):
    torch.manual_seed(0)
    output = model.generate(SOURCES[1:2].expand(4000, -1), do_sample=True, max_new_tokens=1)
    drawn = torch.bincount(output[:, 1], minlength=31) / 4000
    expected = model(SOURCES[1:2], decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    torch.testing.assert_close(drawn, expected.softmax(-1), atol=0.03, rtol=0)


def test_scores_of_a_draw_are_normalised_after_its_filters(model):
    options = {"top_k": 3, "temperature": 0.5, "renormalize_logits": True, "output_scores": True}
    output = model.generate(SOURCES, do_sample=True, return_dict_in_generate=True, **options)
    for scores in output.scores:
        torch.testing.assert_close(scores.logsumexp(-1), torch.zeros(len(SOURCES)))
    assert (output.scores[0] > -math.inf).sum(-1).tolist() == [3] * len(SOURCES)


def test_beam_sampling_and_n_best_come_in_order_with_their_scores(model):
    torch.manual_seed(0)
    assert model.generate(SOURCES, do_sample=True, num_beams=3, max_new_tokens=5).size(0) == 3
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.0}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    output = model.generate(SOURCES[1:2], max_new_tokens=6, **options)
    assert output.sequences_scores.tolist() == sorted(output.sequences_scores, reverse=True)
    assert len({tuple(row) for row in output.sequences.tolist()}) == 3
    for sequence, score in zip(output.sequences, output.sequences_scores, strict=True):
        kept = sequence[: 1 + (sequence[1:] != 1).sum()]
        total = probabilities(model, SOURCES[1], kept).sum()
        torch.testing.assert_close(score, total, atol=1e-4, rtol=1e-5)


def test_other_ways_to_decode_give_what_greedy_gives(model):
    source = SOURCES[1:2]
    expected = model.generate(source, max_new_tokens=12).tolist()
    for options in (
        {"assistant_model": small_model(decoder_layers=1)},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "static"},
        {"encoder_outputs": model.get_encoder()(source), "inputs": None},
        {"inputs_embeds": model.get_input_embeddings()(source), "inputs": None},
    ):
        given = {"inputs": source, "max_new_tokens": 12, **options}
        assert model.generate(**given).tolist() == expected


def test_tokens_are_streamed_as_they_come(model):
    put = []

    class Streamer(BaseStreamer):
        def put(self, value):
            put.extend(value.flatten().tolist())

        def end(self):
            put.append("end")

    output = model.generate(SOURCES[1:2], max_new_tokens=7, streamer=Streamer())
    assert put == [*output[0].tolist(), "end"]


def test_scores_attentions_and_states_of_each_step(model):
    outputs = ("output_logits", "output_attentions", "output_hidden_states")
    options = dict.fromkeys((*outputs, "return_dict_in_generate"), True)
    output = model.generate(SOURCES, max_new_tokens=4, min_new_tokens=4, **options)
    logits = model(SOURCES, decoder_input_ids=output.sequences[:, :-1]).logits
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits, atol=1e-5, rtol=1e-5)
    assert [len(step) for step in output.cross_attentions] == [3] * 4
    assert output.cross_attentions[2][1].shape == (3, 2, 1, 7)
    assert output.decoder_attentions[2][1].shape == (3, 2, 1, 3)
    assert output.encoder_attentions[1].shape == (3, 3, 7, 7)
    assert output.decoder_hidden_states[3][0].shape == (3, 1, 12)
    assert output.cross_attentions[1][0][0, :, :, 5:].max() == 0


def test_beam_search_leaves_the_source_s_keys_and_values_alone(model, monkeypatch):
    moved, reorder = [], Cache.reorder_cache
    monkeypatch.setattr(
        Cache, "reorder_cache", lambda self, beams: moved.append(self) or reorder(self, beams)
    )
    output = model.generate(SOURCES, num_beams=3, max_new_tokens=6, return_dict_in_generate=True)
    assert moved
    assert {id(cache) for cache in moved} == {id(output.past_key_values.self_attention_cache)}


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_padded_target_prefixes_continue_like_single_prefixes(model, num_beams, cache):
    """decoder_input_ids, padded on the left, with their mask."""
    prefix = torch.tensor([[1, 0, 20], [0, 21, 22], [1, 1, 0]])
    settings = {"max_new_tokens": 4, "eos_token_id": None, "num_beams": num_beams}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    together = model.generate(
        SOURCES,
        decoder_input_ids=prefix,
        decoder_attention_mask=(prefix != 1).long(),
        decoder_start_token_id=[1, 0, 1],
        cache_implementation=cache,
        **settings,
    )
    for row, source in enumerate(SOURCES):
        own = prefix[row][prefix[row] != 1][None]
        alone = model.generate(source[None], decoder_input_ids=own, **settings)
        assert together.sequences[row, -4:].tolist() == alone.sequences[0, -4:].tolist()
        beams = slice(row * num_beams, (row + 1) * num_beams)
        torch.testing.assert_close(together.logits[0][beams], alone.logits[0])


def test_threads_share_a_model(model):
    def ids(row):
        return model.generate(row[None], max_new_tokens=8).tolist()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ids, SOURCES)) == [ids(row) for row in SOURCES]


@pytest.mark.parametrize("num_beams", [1, 2])
def test_nan_scores_raise_an_error(model, num_beams):
    with torch.no_grad():
        model.model.decoder.layers[1].fc1.weight[0, 0] = float("nan")
    for options in ({}, {"do_sample": True}):
        with pytest.raises(ValueError, match=r"non-finite scores \(NaN\).* dtype='float32'"):
            model.generate(SOURCES, num_beams=num_beams, max_new_tokens=3, **options)


@pytest.mark.long
@torch.no_grad()
def test_decoding_step_compiles_whole(model):
    """With a static cache, as generate() compiles it on accelerators."""
    expected = model.generate(SOURCES, max_new_tokens=5, cache_implementation="static")
    static = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=8)
    cache = EncoderDecoderCache(static, DynamicCache())
    encoder_outputs = model.get_encoder()(SOURCES)
    mask = (SOURCES != 1).long()
    step = torch.compile(model.forward, fullgraph=True, backend="eager")
    tokens = torch.zeros(3, 1, dtype=torch.long)
    for _ in range(5):
        logits = step(
            encoder_outputs=encoder_outputs,
            attention_mask=mask,
            decoder_input_ids=tokens[:, -1:],
            use_cache=True,
            **{CACHE_NAME: cache},
        ).logits
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    for row, other in zip(tokens.tolist(), expected.tolist(), strict=True):
        end = row.index(2) + 1 if 2 in row else len(row)
        assert row[:end] == other[:end]


def test_ending_at_the_limit_has_its_price_with_renormalized_scores(model, batch):
    """If the limit came before the normalisation, ending would be certain and cost nothing."""
    options = {"num_beams": 2, "max_tokens_beyond_source": 1, "output_scores": True}
    options |= {"return_dict_in_generate": True, "length_penalty": 0.0}
    plain = model.generate(batch["input_ids"], **options)
    renormalized = model.generate(batch["input_ids"], renormalize_logits=True, **options)
    assert plain.sequences.tolist() == renormalized.sequences.tolist()
    torch.testing.assert_close(plain.sequences_scores, renormalized.sequences_scores)


def test_a_given_generation_config_stays_as_it_is_and_needs_no_warning(model, batch, caplog):
    given = GenerationConfig(num_beams=2, eos_token_id=2, decoder_start_token_id=0, pad_token_id=1)
    before = given.to_dict()
    output = model.generate(batch["input_ids"], generation_config=given)
    assert output.tolist() == model.generate(batch["input_ids"], num_beams=2).tolist()
    assert given.to_dict() == before
    assert "generation-related" not in caplog.text
