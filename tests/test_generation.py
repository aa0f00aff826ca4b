"""generate(): with and without a cache, alone and in company, as long as the source asks for."""

import pytest
import torch
from conftest import small_model
from transformers import GenerationConfig

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


def test_logits_of_cached_steps_are_those_of_one_pass(model):
    target = torch.tensor([[0, 15, 16, 17, 18, 19]]).expand(3, -1)
    expected = model(SOURCES, decoder_input_ids=target).logits
    mask = (SOURCES != 1).long()
    output = model(SOURCES, decoder_input_ids=target[:, :2], use_cache=True)
    pieces, cache = [output.logits], output.past_key_values
    for start, end in ((2, 3), (3, 6)):
        output = model(
            encoder_outputs=(output.encoder_last_hidden_state,),
            attention_mask=mask,
            decoder_input_ids=target[:, start:end],
            past_key_values=cache,
            use_cache=True,
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
    left = torch.stack([torch.cat([row[row == 1], row[row != 1]]) for row in SOURCES])
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


def test_the_limit_can_be_set_and_lengths_that_are_given_win():
    model = never_ending()
    assert [len(row) for row in rows(model.generate(SOURCES, max_tokens_beyond_source=3))] == [
        9,
        11,
        6,
    ]
    assert model.generate(SOURCES, max_new_tokens=4).shape == (3, 5)
    assert model.generate(SOURCES, max_length=4).shape == (3, 4)
    config = GenerationConfig(max_new_tokens=6)
    assert model.generate(SOURCES, generation_config=config).shape == (3, 7)


def test_the_limit_counts_from_a_prefix():
    prefix = torch.tensor([[0, 20, 21]]).expand(3, -1)
    output = rows(never_ending().generate(SOURCES, decoder_input_ids=prefix))
    assert [len(row) for row in output] == [3 + 55, 3 + 57, 3 + 52]
    assert all(row[:3] == [0, 20, 21] for row in output)


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
    with pytest.raises(ValueError, match=r"max_position_embeddings=9 .*max_length=11. .*most 10"):
        model.generate(SOURCES, max_length=11)


def test_given_encoder_outputs_generate_the_same(model):
    encoder_outputs = model.get_encoder()(SOURCES[1:2])
    output = model.generate(encoder_outputs=encoder_outputs, max_new_tokens=9)
    assert output.tolist() == model.generate(SOURCES[1:2], max_new_tokens=9).tolist()


def test_static_cache_gives_the_same(model):
    expected = model.generate(SOURCES, max_new_tokens=9)
    static = model.generate(SOURCES, max_new_tokens=9, cache_implementation="static")
    assert static.tolist() == expected.tolist()


def test_own_target_vocabulary_is_decoded():
    output = small_model(decoder_vocab_size=7).generate(SOURCES, num_beams=2)
    assert output.max() < 7
