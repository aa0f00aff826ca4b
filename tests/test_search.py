"""Searches, compared with generate(), brute force and forced scores."""

import itertools
import math
from functools import cache

import pytest
import torch
from conftest import small_model
from torch.nn.utils.rnn import pad_sequence

from modeling_aiayn.translation import candidates, torch_engine, wanted_phrases
from modeling_aiayn.translation.beam_decoder import BeamDecoder
from modeling_aiayn.translation.candidates import Restrictions
from modeling_aiayn.translation.fast_model import FastModel
from modeling_aiayn.translation.hypotheses import SourceSentence, length_divisor
from modeling_aiayn.translation.hypothesis_tree import CHECK_STEPS, FIRST_STEPS, HypothesisTree
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.torch_engine import TorchEngine

EOS = 2
# Every switch of the architecture that decoding can meet.
CONFIGS = {
    "paper": {},
    "pre_norm_wide_heads": {"norm_first": True, "head_dim": 7, "attention_bias": True},
    "learned": {"position_type": "learned", "max_position_embeddings": 90, "position_offset": 3},
    "two_vocabularies": {"decoder_vocab_size": 23, "lm_head_bias": True},
    "untied": {"tie_word_embeddings": False, "final_norm": True, "scale_embedding": False},
    "other": {"position_offset": 2, "position_base": 77.0, "activation_function": "gelu"},
}


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def searching(request, monkeypatch):
    """Search by Numba's functions and by torch's."""
    if request.param == "torch":
        search_by_torch(monkeypatch)


def search_by_torch(monkeypatch):
    monkeypatch.setattr(torch_engine, "compiled_model", lambda *arguments: None)


def random_sources(count=9, vocab_size=31, longest=11):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, vocab_size, (length,), generator=generator).tolist(), EOS]
        for length in lengths
    ]


SOURCES = random_sources()


@pytest.fixture
def engine():
    return TorchEngine([small_model()])


def search(engine, sources, **options):
    sentences = [SourceSentence(ids, number=index) for index, ids in enumerate(sources)]
    return engine.search(sentences, SearchOptions(**options))


@cache  # both engines are compared with it
def generated(name, **options):
    """Ids from generate(), one batch of all sources, of the model with a configuration."""
    rows = [torch.tensor(source) for source in SOURCES]
    batch = pad_sequence(rows, batch_first=True, padding_value=1)
    found = small_model(**CONFIGS[name]).generate(batch, **options)[:, 1:].tolist()
    return [tuple(row[: row.index(EOS) + 1]) for row in found]


@pytest.mark.parametrize("num_beams", [1, 4, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_ids_as_generate(name, num_beams):
    model = small_model(**CONFIGS[name])
    penalty = {"length_penalty": 1.0}
    options = {"num_beams": num_beams, "length_normalization": "power", **penalty}
    found = search(TorchEngine([model]), SOURCES, **options)
    penalty = {} if num_beams == 1 else penalty
    expected = generated(name, num_beams=num_beams, **penalty)
    assert [best.token_ids for (best,) in found] == expected


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"min_length": 6}, {"min_new_tokens": 6}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
        ({"length_penalty": -1.3}, {"length_penalty": -1.3}),
        ({"length_penalty": 2.5}, {"length_penalty": 2.5}),
    ],
    ids=str,
)
def test_each_option_means_what_it_means_to_generate(ours, theirs):
    options = {"num_beams": 3, "nbest": 2, "length_normalization": "power", "length_penalty": 1.0}
    found = search(TorchEngine([small_model()]), SOURCES, **{**options, **ours})
    settings = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.0}
    expected = generated("paper", **{**settings, **theirs})
    assert [each.token_ids for hypotheses in found for each in hypotheses] == expected


@pytest.mark.parametrize("normalization", ["gnmt", "power"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_hypothesis_s_score_is_its_forced_score(engine, num_beams, normalization):
    options = {"num_beams": num_beams, "nbest": num_beams, "length_normalization": normalization}
    found = search(engine, SOURCES, **options)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        targets = [each.token_ids for each in hypotheses]
        assert len(set(targets)) == num_beams
        forced = engine.score([source] * num_beams, targets)
        for each, log_probability in zip(hypotheses, forced, strict=True):
            assert each.log_probability == pytest.approx(log_probability, rel=1e-5)
            divisor = length_divisor(len(each.token_ids), 0.6, normalization)
            assert each.score == pytest.approx(log_probability / divisor, rel=1e-5)
        scores = [each.score for each in hypotheses]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_sentence_s_hypotheses_do_not_depend_on_its_batch(engine, num_beams):
    sources = random_sources(count=32)
    options = {"num_beams": num_beams, "max_length_offset": 9}
    together = search(engine, sources, **options)
    for size in (1, 7):
        apart = [
            found
            for start in range(0, 32, size)
            for found in search(engine, sources[start : start + size], **options)
        ]
        assert [best.token_ids for (best,) in apart] == [best.token_ids for (best,) in together]


def test_wide_beams_find_the_best_of_all_translations():
    """Against every sequence of a tiny vocabulary, at lengths up to 4."""
    engine = TorchEngine([small_model(vocab_size=6)])
    source = [4, 5, 4, EOS]
    others = [0, 1, 3, 4, 5]
    everything = [
        (*body, EOS) for length in range(4) for body in itertools.product(others, repeat=length)
    ]
    scores = engine.score([source] * len(everything), everything)
    options = {"max_length_factor": 0.0, "max_length_offset": 4, "num_beams": 130, "nbest": 130}
    for alpha in (0.0, 0.6, 2.0):
        ranked = sorted(
            everything,
            key=lambda ids: -scores[everything.index(ids)] / ((5 + len(ids)) / 6) ** alpha,
        )
        (found,) = search(engine, [source], length_penalty=alpha, **options)
        assert [each.token_ids for each in found[:20]] == ranked[:20]


def test_length_is_limited_by_the_source_and_the_end_is_paid_for(engine):
    options = {"max_length_factor": 0.5, "max_length_offset": 2, "min_length": 50, "num_beams": 2}
    for source, (best,) in zip(SOURCES, search(engine, SOURCES, **options), strict=True):
        assert len(best.token_ids) == len(source) // 2 + 2
        (forced,) = engine.score([source], [best.token_ids])
        assert best.log_probability == pytest.approx(forced, rel=1e-5)


def test_a_translation_continues_its_prefix_as_the_model_does():
    model = small_model()
    engine = TorchEngine([model])
    source, prefix = [7, 8, 9, EOS], [11, 12, 13]
    free, bound = SourceSentence(source), SourceSentence(source, prefix=prefix)
    plain, begun = engine.search([free, bound], SearchOptions(num_beams=3))
    assert list(begun[0].token_ids[:3]) == prefix
    expected = model.generate(
        torch.tensor([source]),
        decoder_input_ids=torch.tensor([[0, *prefix]]),
        num_beams=1,
        max_new_tokens=len(source) + 50 - 3,
    )[0, 1:-1].tolist()
    ((greedy,),) = engine.search([bound], SearchOptions(num_beams=1))
    assert list(greedy.token_ids[: len(expected)]) == expected
    (alone,) = engine.search([free], SearchOptions(num_beams=3))
    assert [each.token_ids for each in plain] == [each.token_ids for each in alone]
    # Plain products of other numbers of rows may differ in the last digit.
    expected = [each.log_probability for each in alone]
    assert [each.log_probability for each in plain] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_prefix_may_repeat_an_n_gram(engine, do_sample):
    prefix = [11, 12, 11, 12, 11]
    options = {"do_sample": True, "nbest": 4} if do_sample else {"num_beams": 4}
    options = SearchOptions(no_repeat_ngram_size=2, min_length=9, **options)
    (found,) = engine.search([SourceSentence([7, 8, 9, EOS], prefix=prefix)], options)
    for each in found:
        assert list(each.token_ids[:5]) == prefix
        pairs = list(itertools.pairwise(each.token_ids[4:]))
        assert len(pairs) == len(set(pairs)) and not {(11, 12), (12, 11)} & set(pairs)
        assert len(each.token_ids) > 9
    assert len(found) == (4 if do_sample else 1)


PHRASES = [[[9]], [[9, 10, 11]], [[9, 10], [12, 13, 14]], [[9, 10], [9, 12]], [[15, 15, 15]]]
PHRASES += [[[9], [9, 10]], [[9, 10, 11], [10, 11, 12]], [[9, 9, 10], [9, 10]]]


@pytest.fixture(scope="module", params=[2, 5])
def free(request):
    """An engine, options, and the best translation of the first source without phrases."""
    engine, options = TorchEngine([small_model()]), SearchOptions(num_beams=request.param)
    return engine, options, search(engine, SOURCES, num_beams=request.param)[0][0]


@pytest.mark.parametrize("phrases", PHRASES, ids=str)
def test_wanted_phrases_occur_and_are_scored(free, phrases, monkeypatch):
    for name, value in {"FIRST_CREDIT": 9.0, "CREDIT": 9.0, "PRICE": 99.0}.items():
        monkeypatch.setattr(wanted_phrases, name, value)
    engine, options, best_without = free
    sentences = [SourceSentence(ids, phrases=[[tuple(x)] for x in phrases]) for ids in SOURCES]
    sentences.append(SourceSentence(SOURCES[0]))
    *bound, unbound = engine.search(sentences, options)
    assert unbound[0].token_ids == best_without.token_ids
    for source, (best,) in zip(SOURCES, bound, strict=True):
        text = " ".join(map(str, best.token_ids))
        assert all(" ".join(map(str, phrase)) in text for phrase in phrases)
        assert best.token_ids[-1] == EOS
        (forced,) = engine.score([source], [best.token_ids])
        assert best.log_probability == pytest.approx(forced, rel=1e-5)


@pytest.mark.parametrize(
    "phrases", [[[9], [9, 10]], [[9, 10], [9, 10, 11]], [[10, 11], [9, 10, 11]]]
)
def test_a_phrase_inside_another_need_not_occur_twice(engine, phrases):
    sentences = [SourceSentence(ids, phrases=[[tuple(x)] for x in phrases]) for ids in SOURCES]
    found = engine.search(sentences, SearchOptions(num_beams=8))
    texts = [" ".join(map(str, best.token_ids)) for (best,) in found]
    shorter = " ".join(map(str, phrases[0]))
    assert 1 in {text.count(shorter) for text in texts}


@pytest.mark.parametrize("nbest", [1, 3])
def test_both_searches_know_the_same_phrases(monkeypatch, nbest):
    """Phrases that overlap, and a prefix that contains or begins one."""
    random = torch.Generator().manual_seed(8)
    sentences = []
    for ids in random_sources(count=60):
        numbers = torch.randint(1, 4, (5, 3), generator=random)
        forms = [
            tuple(torch.randint(9, 12, (size,), generator=random).tolist())
            for size in numbers.flatten().tolist()
        ]
        prefix = forms[0] if len(ids) > 9 else ()
        phrases = [forms[start : start + 3] for start in range(0, 3 * (len(ids) % 6), 3)]
        sentences.append(SourceSentence(ids, prefix=prefix, phrases=phrases))
    options = SearchOptions(num_beams=4, nbest=nbest)
    found = TorchEngine([small_model()]).search(sentences, options)
    search_by_torch(monkeypatch)
    expected = TorchEngine([small_model()]).search(sentences, options)
    for ours, theirs in zip(found, expected, strict=True):
        assert [a.token_ids for a in ours] == [a.token_ids for a in theirs]
        for name in ("score", "log_probability"):
            numbers = [[getattr(each, name) for each in some] for some in (ours, theirs)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)


def contains(ids, form):
    return any(tuple(ids[n : n + len(form)]) == form for n in range(len(ids)))


def test_wanted_phrases_occur_where_they_are_likely_enough(monkeypatch):
    """A translation lacks one of them only if it is likelier by more than the price."""
    engine = TorchEngine([small_model()])
    forms = [(9, 10), (12, 13)]
    sentences = [SourceSentence(ids, phrases=[forms]) for ids in SOURCES]
    shares = []
    for credit, price in ((-4.0, 0.0), (0.0, 1.0), (4.0, 100.0)):
        monkeypatch.setattr(wanted_phrases, "FIRST_CREDIT", credit)
        monkeypatch.setattr(wanted_phrases, "PRICE", price)
        found = engine.search(sentences, SearchOptions(num_beams=4))
        has = [any(contains(best.token_ids, form) for form in forms) for (best,) in found]
        shares.append(sum(has))
        for source, (best,), is_met in zip(SOURCES, found, has, strict=True):
            (total,) = engine.score([source], [best.token_ids])
            assert best.log_probability == pytest.approx(total, rel=1e-5)
            divisor = ((5 + len(best.token_ids)) / 6) ** 0.6
            assert best.score == pytest.approx((total - (not is_met) * price) / divisor, rel=1e-5)
    assert shares == sorted(shares) and shares[0] < shares[2] == len(SOURCES)


def test_an_ensemble_votes_by_mean_probability():
    models = [small_model(), small_model(d_model=16, encoder_attention_heads=4)]
    with torch.no_grad():
        for weight in models[1].parameters():
            weight.mul_(1.2)
    engine = TorchEngine(models)
    found = search(engine, SOURCES, num_beams=3)
    singles = [search(TorchEngine([model]), SOURCES, num_beams=3) for model in models]
    assert found not in singles
    for source, (best,) in zip(SOURCES, found, strict=True):
        inputs = torch.tensor([[0, *best.token_ids[:-1]]])
        shares = [
            model(torch.tensor([source]), decoder_input_ids=inputs).logits.softmax(-1)
            for model in models
        ]
        picked = (sum(shares) / 2)[0, range(len(best.token_ids)), best.token_ids]
        assert best.log_probability == pytest.approx(picked.log().sum().item(), rel=1e-5)
        (forced,) = engine.score([source], [best.token_ids])
        assert best.log_probability == pytest.approx(forced, rel=1e-5)
    twins = search(TorchEngine([models[0]] * 2), SOURCES, num_beams=3)
    assert [best.token_ids for (best,) in twins] == [best.token_ids for (best,) in singles[0]]


def test_the_coverage_penalty_is_wu_et_al_s():
    model = small_model()
    options = {"num_beams": 3, "nbest": 3, "coverage_penalty": 0.7, "length_penalty": 0.3}
    found = search(TorchEngine([model]), SOURCES, **options)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        for each in hypotheses:
            inputs = torch.tensor([[0, *each.token_ids[:-1]]])
            output = model(torch.tensor([source]), decoder_input_ids=inputs, output_attentions=True)
            received = output.cross_attentions[-1][0].mean(0).sum(0)  # [S]
            coverage = received.clamp(max=1.0).log().sum().item()
            expected = each.log_probability / ((5 + len(each.token_ids)) / 6) ** 0.3
            assert each.score == pytest.approx(expected + 0.7 * coverage, rel=1e-4)


def test_length_divisors_are_those_of_the_papers():
    assert length_divisor(7, 0.6, "gnmt") == pytest.approx(2**0.6)
    assert length_divisor(7, 0.6, "power") == pytest.approx(7**0.6)
    assert length_divisor(7, 0.0, "gnmt") == 1.0


def test_samples_are_repeatable_and_independent_of_the_batch(engine):
    options = {"do_sample": True, "nbest": 3, "temperature": 1.5}
    together = search(engine, SOURCES, **options)
    assert together == search(engine, SOURCES, **options)
    assert together != search(engine, SOURCES, **options, search_seed=1)
    sentence = SourceSentence(SOURCES[4], number=4)
    (alone,) = engine.search([sentence], SearchOptions(**options))
    assert [each.token_ids for each in alone] == [each.token_ids for each in together[4]]
    for each in together[4]:
        (forced,) = engine.score([SOURCES[4]], [each.token_ids])
        assert each.log_probability == pytest.approx(forced, rel=1e-5)


def test_a_sample_whose_next_tokens_are_all_forbidden_is_no_translation():
    engine = TorchEngine([small_model(vocab_size=24)])
    options = {"do_sample": True, "nbest": 2, "no_repeat_ngram_size": 1}
    limits = {"min_length": 60, "max_length_offset": 60}
    sentence = SourceSentence([5, 6, 2], number=0)
    assert engine.search([sentence], SearchOptions(**options, **limits)) == [[]]
    (samples,) = engine.search([sentence], SearchOptions(**options, max_length_offset=9))
    assert len(samples) == 2
    assert all(len({*each.token_ids}) == len(each.token_ids) for each in samples)


def test_draws_follow_temperature_top_k_and_top_p():
    logits = torch.tensor([4.0, 1.0, 3.0, 2.0]).log()
    draws = 4000

    def shares(**options):
        chances = [[(index + 0.5) / draws for index in range(draws)]]
        (drawn,) = candidates.drawn_candidates(
            logits.expand(1, draws, 4),
            torch.zeros(1, draws),
            Restrictions({}, [], []),
            SearchOptions(do_sample=True, nbest=draws, **options),
            chances,
        )
        assert drawn.parents == list(range(draws))
        expected = [math.log([0.4, 0.1, 0.3, 0.2][token]) for token in drawn.tokens]
        assert drawn.log_probabilities == pytest.approx(expected)
        return [drawn.tokens.count(token) / draws for token in range(4)]

    assert shares() == pytest.approx([0.4, 0.1, 0.3, 0.2], abs=1e-3)
    assert shares(temperature=0.5) == pytest.approx([16 / 30, 1 / 30, 9 / 30, 4 / 30], abs=1e-3)
    assert shares(top_k=2) == pytest.approx([4 / 7, 0, 3 / 7, 0], abs=1e-3)
    assert shares(top_p=0.5) == pytest.approx([4 / 7, 0, 3 / 7, 0], abs=1e-3)
    assert shares(top_p=0.3) == [1, 0, 0, 0]
    # Of what top_k leaves, top_p takes shares, as the library does.
    assert shares(top_k=2, top_p=0.5) == [1, 0, 0, 0]


def test_candidates_are_the_best_of_all_hypotheses():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    before = torch.tensor([[-1.0, -0.5, -torch.inf], [-2.0, -2.5, -0.1]])
    restrictions = Restrictions({1: [6, 3]}, [(0, 1, 4), (0, 0, 2)], [(0, 0, 5, 0.7)])
    scores = before[..., None] + logits.log_softmax(-1)
    scores[0, 0, 5] += 0.7
    scores[0, 1, 4] = scores[0, 0, 2] = -torch.inf
    scores[1, :, [0, 1, 2, 4, 5]] = -torch.inf
    found = candidates.best_candidates(logits, before, restrictions, 5)
    torch.testing.assert_close(before[..., None] + logits, scores)  # overwritten in place
    for sentence in range(2):
        best, index = scores[sentence].flatten().topk(5)
        assert found[sentence].parents == (index // 7).tolist()
        assert found[sentence].tokens == (index % 7).tolist()
        torch.testing.assert_close(torch.tensor(found[sentence].log_probabilities), best)
        assert len(found[sentence].tokens) == 5


def test_an_ensemble_stops_at_the_shortest_position_table():
    learned = {"position_type": "learned", "position_offset": 0}
    models = [small_model(**learned, max_position_embeddings=size) for size in (40, 12)]
    ((found,),) = search(TorchEngine(models), [[5, 6, EOS]], min_length=30)
    assert len(found.token_ids) == 12


def test_a_search_with_fewer_hypotheses_than_beams_changes_no_other(monkeypatch):
    """No repeated pair and no end is allowed, so hypotheses run out of continuations."""
    search_by_torch(monkeypatch)
    widths = []
    step = BeamDecoder.step

    def noting_step(self, tokens, parents):
        widths.append(tokens.size(1))
        return step(self, tokens, parents)

    monkeypatch.setattr(BeamDecoder, "step", noting_step)
    engine = TorchEngine([small_model(vocab_size=6)])
    options = {"num_beams": 5, "no_repeat_ngram_size": 2, "min_length": 24}
    sources = random_sources(count=16, vocab_size=6)
    together = search(engine, sources, **options)
    assert widths[:2] == [1, 5]
    assert 1 < widths[-1] < 5
    for source, found in zip(sources, together, strict=True):
        (alone,) = search(engine, [source], **options)
        assert [each.token_ids for each in alone] == [each.token_ids for each in found]


@pytest.mark.parametrize("weight", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("do_sample", [False, True])
def test_rejects_nan_scores(do_sample, weight):
    """Weights may be finite, and their products too large."""
    model = small_model(norm_first=True)
    with torch.no_grad():
        model.model.decoder.layer_norm.weight[:] = weight
    engine = TorchEngine([model])
    for call in (
        lambda: search(engine, [[5, 6, EOS]], do_sample=do_sample),
        lambda: engine.score([[5, 6, EOS]], [[7, EOS]]),
    ):
        with pytest.raises(ValueError, match=r"non-finite scores \(NaN\)"):
            call()


def test_the_tree_gives_each_hypothesis_its_own_past():
    """Compared with a cache that is copied whenever beams change places."""
    generator = torch.Generator().manual_seed(0)
    layers, sentences, most, heads, size, width = 2, 5, 3, 2, 4, 1
    tree = HypothesisTree(most, [torch.empty(layers, sentences, heads, 9, size)])
    past = torch.empty(layers, 2, sentences, width, heads, 0, size)
    entries = 0
    for step in range(4 * FIRST_STEPS):  # longer than the first memory
        before, width = width, 1 if step in (0, 20) else 2 if step % 7 == 6 else most
        parents = torch.randint(0, before, (sentences, width), generator=generator)
        new = torch.randn(layers, 2, sentences, heads, width, size, generator=generator)
        tree.grow(parents)
        entries += width
        for layer, written in zip(tree.entries(0), new, strict=True):
            layer.newest.copy_(written)
        kept = torch.stack(
            [torch.stack((each.keys.transpose(1, 2), each.values)) for each in tree.entries(0)]
        ).unflatten(2, (sentences, heads))
        rows = torch.arange(sentences)[:, None]
        past = torch.cat((past[:, :, rows, parents], new.transpose(3, 4)[..., None, :]), dim=5)
        allowed = tree.mask(0).unflatten(0, (sentences, heads)) == 0
        assert (allowed[:, 0] == allowed[:, 1]).all()
        for sentence in range(sentences):
            for hypothesis in range(width):
                seen = allowed[sentence, 0, hypothesis]
                expected = past[:, :, sentence, hypothesis]
                found = kept[:, :, sentence, :, seen]
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if step == CHECK_STEPS + 2:
            staying = torch.tensor([0, 2, 4])
            tree.keep(staying)
            past, sentences = past[:, :, staying], 3
    assert FIRST_STEPS * most < tree.size < entries * 2 / 3


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.06)],
    ids=str,
)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_fast_encoder_gives_the_model_s_keys_and_values(name, dtype, tolerance):
    model = small_model(**CONFIGS[name]).to(dtype)
    rows = [torch.tensor(source) for source in SOURCES]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=1)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    with torch.inference_mode():
        found = FastModel(model).encode(input_ids, mask)
        hidden_states = model.model.encoder(input_ids, mask).last_hidden_state
        layers = zip(model.model.decoder.layers, found.keys, found.values, strict=True)
        for layer, keys, values in layers:
            expected = layer.encoder_attn.project_keys_values(hidden_states)
            for ours, theirs in zip((keys.transpose(2, 3), values), expected, strict=True):
                is_real = mask.bool()[:, None, :, None].expand_as(theirs)
                found_ones, expected_ones = ours[is_real].double(), theirs[is_real].double()
                torch.testing.assert_close(found_ones, expected_ones, rtol=0, atol=tolerance)
                assert ours.isfinite().all()
