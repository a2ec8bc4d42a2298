"""The way from raw text to a cited summary, with real (random) weights; citations, compression, errors."""

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.small_models import pack
from helpers.small_runs import DOCUMENTS, write_random_run
from raysum import systems
from raysum.cli.app import main
from raysum.cli.clusters import input_clusters
from raysum.decode import summarizer
from raysum.decode.attention import attention_of
from raysum.decode.beam import beam_search
from raysum.decode.scores import terms
from raysum.decode.summarizer import Progress, SummarizedRow, Summarizer
from raysum.errors import UserError
from raysum.metrics import citations
from raysum.models.family.spec import FamilySpec
from raysum.models.systems.paragraph_scorers import Titles
from raysum.models.systems.specs import PredictorSpec, RankerSpec, TdmcaSpec
from raysum.runs.folder import Run
from raysum.sources.field_mapping import FieldMapping
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary

CLUSTER = {"title": "The mill", "documents": DOCUMENTS}
TOWNS = ["Arden", "Belfort", "Corvina", "Dunmore", "Elsinore", "Farrow"]


def clusters(count: int) -> list[dict]:
    """Clusters of one to four documents of unlike length."""
    texts = [f"{town} lies by the river, and has {n} houses and one mill." for n, town in enumerate(TOWNS * 3, 3)]
    return [
        {"id": str(i), "title": TOWNS[i % 6], "documents": [" ".join(texts[i : i + 1 + j]) for j in range(1 + i % 4)]}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs `plain`, `aligned` (the same with a predictor), `flat` (no paragraph layers in its decoder), `joined` (reads
    one sequence), `tdmca` and `ranker`, and a predictor in `aligned`."""
    path = tmp_path_factory.mktemp("runs")
    texts = [line for d in DOCUMENTS for line in (d if isinstance(d, str) else d["text"]).splitlines()]
    Vocabulary.train(texts + [text for c in clusters(12) for text in c["documents"]], 150, path / "vocabulary.model")
    size = len(load_tokenizer(path / "vocabulary.model"))
    sizes = {"vocabulary": size, "width": 32, "ffn": 64, "heads": 4, "pooling_heads": 4}
    pht = FamilySpec(encoder="LL", decoder="PP", **sizes)
    decoder_only = {"vocabulary": size, "width": 32, "ffn": 64, "heads": 4, "layers": "LM", "block": 8}
    for name, spec, seed in (
        ("plain", pht, 3),
        ("aligned", pht, 3),
        ("flat", FamilySpec(encoder="LG", decoder="FF", **sizes), 3),
        ("joined", FamilySpec(encoder="SS", decoder="F", positions="flat", **sizes), 3),
        ("aligned/alignment", PredictorSpec(layers=1, width=32, ffn=64, heads=4), 4),
        ("ranker", RankerSpec(vocabulary=size, width=16, hidden=16), 5),
        ("tdmca", TdmcaSpec(**decoder_only), 6),
    ):
        write_random_run(path / name, path / "vocabulary.model", spec, seed)
    return path


@pytest.fixture(scope="module")
def plain(folder) -> Summarizer:
    return Summarizer.load(folder / "plain")


@pytest.fixture(scope="module")
def aligned(folder) -> Summarizer:
    return Summarizer.load(folder / "aligned")


def test_citations_name_documents_and_their_paragraphs(plain):
    row = plain.prepare(CLUSTER)
    texts = [document if isinstance(document, str) else document["text"] for document in DOCUMENTS]
    lines = [[line for line in text.splitlines() if line] for text in texts]
    summary = plain.summarize("The mill", DOCUMENTS)
    assert summary.summary and " ".join(s.text for s in summary.sentences) == summary.summary
    assert all(summary.summary[s.start : s.end] == s.text for s in summary.sentences)
    assert len(summary.attention) == len(row["text"]) == 5
    assert sum(summary.attention) == pytest.approx(1, abs=1e-5)
    places = {(c.document, c.paragraph) for s in summary.sentences for c in s.citations}
    assert places <= {(0, 0), (0, 2), (1, 0), (2, 0), (2, 1)}  # "Short." is left out, yet it is paragraph 1
    for document, paragraph, text in zip(row["document"], row["paragraph"], row["text"], strict=True):
        assert lines[document][paragraph] == text
    for sentence in summary.sentences:
        weights = [citation.weight for citation in sentence.citations]
        assert sum(weights) == pytest.approx(1) and weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("options", [{}, {"beta": 0.5}, {"keep_paragraphs": 2, "n_best": 3}])
def test_a_cancelled_summary_breaks_off_and_changes_no_other(aligned, options):
    rows = [aligned.prepare(cluster) for cluster in clusters(5)]
    chosen = aligned.choose({"min_length": 25, "max_length": 30, "batch_examples": 3, "num_beams": 3, **options})
    asked = [0] * 5

    def is_cancelled(index: int) -> bool:
        asked[index] += 1
        return index in (0, 3) and asked[index] > 4

    whole, some = aligned.summarize_rows(rows, chosen), aligned.summarize_rows(rows, chosen, is_cancelled=is_cancelled)
    for place in (1, 2, 4):
        assert some[place].summary == whole[place].summary and asked[place] >= 24
        assert some[place].score == pytest.approx(whole[place].score, abs=1e-4)
    assert asked[0] == asked[3] == 5
    several = aligned.summarize_betas(rows, chosen, [0.1, 0.5], is_cancelled=lambda index: index == 2)
    assert [beta[1].summary for beta in several] == [
        beta[1].summary for beta in aligned.summarize_betas(rows, chosen, [0.1, 0.5])
    ]


@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "alignment_when": "step"}, {"grounded": "all"}])
def test_two_batches_at_a_time_change_no_summary(aligned, options):
    rows, before = [aligned.prepare(cluster) for cluster in clusters(7)], torch.get_num_threads()
    chosen = aligned.choose({"max_length": 15, "batch_examples": 2, **options})
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(aligned.summarize_rows(rows, chosen))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert one.summary == other.summary and one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_searches_that_take_turns_give_what_each_gives_alone_and_their_texts_grow(folder, dtype):
    one, other = (Summarizer.load(folder / name, dtype=dtype) for name in ("aligned", "tdmca"))
    rows, few = [one.prepare(cluster) for cluster in clusters(5)], {"num_beams": 2, "max_length": 20}
    jobs = [(one, rows, one.choose({"beta": 0.5})), (other, rows[:3], other.choose(few)), (one, rows[2:], one.settings)]
    searches = [each.summarize_steps(some, chosen, [chosen.beta]) for each, some, chosen in jobs]
    found: list[dict] = [{} for _ in jobs]
    texts: list[dict] = [{} for _ in jobs]
    while any(len(some) < len(job[1]) for some, job in zip(found, jobs, strict=True)):
        for number, steps in enumerate(searches):
            match next(steps, None):
                case Progress(rows=reading) as progress:
                    for row in reading:
                        texts[number].setdefault(row, []).append(progress.text(row))
                case SummarizedRow(row=row) as done:
                    found[number][row] = done
    for number, (each, some, chosen) in enumerate(jobs):
        alone = {
            event.row: event.summaries[0].to_dict()
            for event in each.summarize_steps(some, chosen, [chosen.beta])
            if isinstance(event, SummarizedRow)
        }
        for row, summary in enumerate(each.summarize_rows(some, chosen)):
            assert found[number][row].summaries[0].to_dict() == alone[row]
            assert 1 < found[number][row].num_tokens <= chosen.max_length
            assert all(summary.summary.startswith(text) for text in texts[number][row])
            assert [*map(len, texts[number][row])] == sorted(map(len, texts[number][row]))
    assert any(text for some in texts for row in some.values() for text in row)


@pytest.mark.parametrize("name", ["plain", "flat", "joined", "tdmca"])
def test_citations_rest_on_the_chosen_layers_and_the_text_does_not(folder, name):
    coverage = 0 if name == "tdmca" else 0.05
    summarizer = Summarizer.load(folder / name, gnmt_coverage=coverage, citations="attention")
    row, model = summarizer.prepare(CLUSTER), summarizer.model
    spec, count = model.spec, model.spec.attending_layers
    kind, found = systems.kind(spec), []
    source = kind.collate(kind.pack([row], summarizer.source)).source
    for layers, requested in ((None, True), ([1], frozenset([0])), ([-1], frozenset([count - 1]))):
        settings = summarizer.choose({"citing_layers": layers})
        found += summarizer.summarize_rows([row], settings)
        best = summarizer.find([row], settings, [0.0])[0].hypotheses[0][0]
        ((weights,),) = attention_of(model, model.encode(source), [[best.ids]], requested)
        assert found[-1].attention == pytest.approx(citations.overall(weights).tolist(), abs=1e-5)
    plain, *others = found
    for other in others:
        assert other.summary == plain.summary and other.score == pytest.approx(plain.score, abs=1e-5)
    assert (count == 1) == (others[0].attention == pytest.approx(plain.attention, abs=1e-5))
    with pytest.raises(
        UserError, match=f"citing_layers names decoder layer 7, and the {spec.system} has {count}, 1 to"
    ):
        summarizer.choose({"citing_layers": [1, 7]})


@pytest.mark.parametrize("name", ["plain", "flat"])
def test_alone_or_together_in_input_order(folder, name):
    summarizer = Summarizer.load(folder / name)
    many = clusters(9)
    together = summarizer.summarize_many(many)
    assert [summary.id for summary in together] == [cluster["id"] for cluster in many]
    for cluster, summary in zip(many, together, strict=True):
        alone = summarizer.summarize_many([cluster])[0]
        assert (alone.summary, alone.score) == (summary.summary, pytest.approx(summary.score, abs=1e-4))
        assert alone.attention == pytest.approx(summary.attention, abs=1e-5)


@pytest.fixture(scope="module")
def ranked(folder) -> Summarizer:
    """Of the run `aligned`, with the ranker."""
    return Summarizer.load(folder / "aligned", ranker=str(folder / "ranker"))


@pytest.mark.parametrize("key", ["beta", "extractive"])
def test_a_term_is_that_of_the_attention_of_teacher_forcing(ranked, key):
    """The running sums of the cached search equal one uncached pass over what it found."""
    rows, model = [ranked.prepare(cluster) for cluster in clusters(5)], ranked.model
    memory = model.encode(pack([np.split(row["ids"], row["paragraph_offsets"][1:-1]) for row in rows]))
    settings = ranked.choose({key: 0.5, "no_repeat_ngram_size": 2})
    if key == "beta":
        hats = ranked.predictor(model.paragraphs(memory), memory.paragraph_mask).detach()
        found = beam_search(model, memory, settings, terms(settings, memory, hats))
    else:
        hats = extracted(ranked, rows)
        found = beam_search(model, memory, settings, terms(settings, memory, None, hats))
    forced = attention_of(model, memory, [[best.ids] for (best,) in found])
    served = ranked.summarize_rows(rows, settings)
    for (best,), (weights,), hat, mask, summary in zip(found, forced, hats, memory.paragraph_mask, served, strict=True):
        assert weights.sum(1) == pytest.approx(np.ones(len(best.ids)), abs=1e-5)
        eta = torch.from_numpy(citations.overall(weights))
        expected = 0.5 * torch.minimum(eta, hat)[mask].clamp_min(1e-6).log().sum().item() * (int(mask.sum()) > 1)
        norm = ((5 + len(best.ids)) / 6) ** settings.length_penalty
        assert best.score == pytest.approx(best.log_prob / norm + expected, abs=1e-4)
        assert summary.score == pytest.approx(best.score, abs=1e-4)
    one = ranked.prepare({"title": "The mill", "documents": ["The only paragraph, on the old mill by the river."]})
    alone, plain = (ranked.summarize_rows([one], ranked.choose({key: weight}))[0] for weight in (0.5, 0.0))
    assert alone == plain  # a single paragraph has all attention


def extracted(summarizer: Summarizer, rows: list[dict]) -> torch.Tensor:
    """Extractive probabilities [B, M] of what the summarizer reads of ``rows``."""
    kind = systems.kind(summarizer.model.spec)
    memory = summarizer.model.encode(kind.collate(kind.pack(rows, summarizer.source)).source)
    return summarizer._extract(rows, summarizer.source, memory).detach()


@pytest.mark.parametrize("name", ["aligned", "joined"])
def test_extractive_probabilities_are_the_rankers_scores_as_shares(folder, name):
    """Of titles and paragraphs as the ranker was trained on; alone or together, with padding paragraphs."""
    summarizer = Summarizer.load(folder / name, ranker=str(folder / "ranker"))
    rows = [summarizer.prepare(cluster) for cluster in clusters(5)]
    found = extracted(summarizer, rows)
    examples = [[part.tolist() for part in np.split(row["ids"], row["paragraph_offsets"][1:-1])] for row in rows]
    assert found.shape == (5, max(map(len, examples))) and len({*map(len, examples)}) > 1
    for row, example, shares in zip(rows, examples, found, strict=True):
        end = row["title_tokens"]
        title = Titles(torch.tensor(example[0][:end]), torch.tensor([end]))
        alone = [example[0][end:], *example[1:]]
        scores = torch.cat([summarizer.ranker(title, pack([[one]])) for one in alone]).sigmoid().detach()
        assert shares[: len(alone)].tolist() == pytest.approx((scores / scores.sum()).tolist(), abs=1e-6)
        assert not shares[len(alone) :].any()


def test_all_terms_together_and_with_compression(folder):
    weights = {"beta": 0.3, "extractive": 0.2, "structural_coverage": 0.5, "gnmt_coverage": 0.01, "keep_paragraphs": 2}
    many = clusters(6)
    for dtype in ("fp32", "bf16"):
        summarizer = Summarizer.load(folder / "aligned", ranker=str(folder / "ranker"), dtype=dtype, **weights)
        for summary in summarizer.summarize_many(many):
            assert summary.summary and np.isfinite(summary.score) and np.count_nonzero(summary.attention) <= 2


@pytest.mark.parametrize("when", ["step", "final"])
def test_what_several_betas_find_alike_is_cited_by_one_pass(aligned, monkeypatch, when):
    rows, betas = [aligned.prepare(cluster) for cluster in clusters(6)], [0.0, 0.05, 1.0, 1e3]
    decode, forced, asked = aligned.model.decode, [], []

    def counting(tokens, *arguments, **options):
        forced.append(len(tokens))
        return decode(tokens, *arguments, **options)

    def listening(model, memory, summaries, *options):
        asked.extend((len(asked), example, tuple(ids)) for example, found in enumerate(summaries) for ids in found)
        return attention_of(model, memory, summaries, *options)

    with monkeypatch.context() as patched:
        patched.setattr(aligned.model, "decode", counting)
        patched.setattr(summarizer, "attention_of", listening)
        together = aligned.summarize_betas(rows, aligned.choose({"alignment_when": when, "batch_examples": 6}), betas)
    different = {hypothesis[1:] for hypothesis in asked}
    assert sum(forced) == len(different)
    assert len(rows) < len(different) < len(rows) * len(betas) == len(asked), "all alike, or none: tests nothing"
    for beta, summaries in zip(betas, together, strict=True):
        alone = aligned.summarize_rows(rows, aligned.choose({"alignment_when": when, "beta": beta}))
        for summary, other in zip(summaries, alone, strict=True):
            assert [s.text for s in summary.sentences] == [s.text for s in other.sentences]
            assert summary.attention == pytest.approx(other.attention, abs=1e-5)
            for one, two in zip(summary.sentences, other.sentences, strict=True):
                assert [c.weight for c in one.citations] == pytest.approx([c.weight for c in two.citations], abs=1e-4)


def test_compression_reads_the_strongest_paragraphs_only(aligned):
    row = aligned.prepare(CLUSTER)
    memory = aligned.model.encode(pack([np.split(row["ids"], row["paragraph_offsets"][1:-1])]))
    model, predictor = aligned.model, aligned.predictor
    predicted = predictor(model.paragraphs(memory), memory.paragraph_mask)[0].detach().numpy()
    summary = aligned.summarize_rows([row], aligned.choose({"keep_paragraphs": 2, "beta": 0.2}))[0]
    read = np.flatnonzero(summary.attention).tolist()
    assert read == sorted(np.argsort(-predicted)[:2].tolist())
    whole = aligned.summarize_rows([row], aligned.choose({"keep_paragraphs": 8}))[0]
    assert whole == aligned.summarize_rows([row])[0]


def test_more_or_less_of_a_source_is_read_than_in_training(folder, plain):
    row = plain.prepare({"title": "The valley", "documents": DOCUMENTS})
    tokens, paragraphs = len(row["ids"]), len(row["document"])
    whole = plain.choose({"source_tokens": tokens})
    (few,) = plain.summarize_rows([row], plain.choose({"source_paragraphs": 2}))
    (cut,) = plain.summarize_rows([row], plain.choose({"source_tokens": 15}))
    assert np.count_nonzero(few.attention) == 2 and np.count_nonzero(cut.attention) < paragraphs > 2
    trained_on_few = Summarizer.load(folder / "plain")
    source = plain.source.model_copy(update={"max_tokens": 15})
    trained_on_few.source = source
    assert trained_on_few.summarize_rows([row]) == [cut]
    assert trained_on_few.summarize_rows([row], whole) == plain.summarize_rows([row])


@pytest.mark.parametrize("when", ["step", "final"])
def test_summaries_begin_with_the_title_where_that_is_asked_for(aligned, when):
    """Each its own, with several betas and fewer paragraphs, too; without asking none does."""
    rows = [aligned.prepare(cluster) for cluster in clusters(5)]
    asked = {"alignment_when": when, "keep_paragraphs": 2, "title_prompt": True}
    titles = [aligned.vocabulary.decode(row["ids"][: row["title_tokens"] - 1].tolist()) for row in rows]
    assert len(set(titles)) > 1
    for summaries in aligned.summarize_betas(rows, aligned.choose(asked), [0.0, 0.3, 10.0]):
        assert all(one.summary.startswith(title) for one, title in zip(summaries, titles, strict=True))
    plain = aligned.summarize_rows(rows, aligned.choose(asked | {"title_prompt": False}))
    assert not any(one.summary.startswith(title) for one, title in zip(plain, titles, strict=True))


def test_a_restricted_graph_is_that_of_its_paragraphs():
    graph = torch.rand(2, 3, 3)
    source = replace(pack([[[9], [10], [11]], [[12], [13]]]), graph=graph).restrict([[0, 2], [1]])
    expected = torch.zeros(2, 2, 2)
    expected[0], expected[1, 0, 0] = graph[0][[0, 2]][:, [0, 2]], graph[1, 1, 1]
    assert torch.equal(source.graph, expected)


@pytest.mark.parametrize(
    ("weights", "cited"),
    [
        ([0.02, 0.95, 0.03], {1: 1.0}),
        ([0.0, 0.5, 0.5], {1: 0.5, 2: 0.5}),
        ([0.1, 0.2, 0.3, 0.25, 0.15], {2: 0.3 / 0.75, 3: 0.25 / 0.75, 1: 0.2 / 0.75}),
        ([0.0] * 4, {}),
    ],
)
def test_cited_paragraphs(weights, cited):
    found = citations.cited(np.array(weights))
    assert [index for index, _ in found] == [*cited]
    assert [weight for _, weight in found] == pytest.approx([*cited.values()])


def test_citations_by_words_take_the_nearest_paragraph_and_by_attention_the_strongest(plain):
    paragraphs = ["the mill by the river", "a fire in the hall", "the river has fish"]
    weights = citations.lexical(["fire destroyed the hall", "fish swim", "xyzzy"], paragraphs)
    assert weights.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    row = plain.prepare(CLUSTER)
    (both,), (lexical,), (attentive,) = (
        plain.summarize_rows([row], plain.choose({"citations": mode})) for mode in ("both", "lexical", "attention")
    )
    assert all(len(sentence.citations) <= 1 for sentence in lexical.sentences)
    assert [s.text for s in lexical.sentences] == [s.text for s in both.sentences]
    (sentence,) = attentive.sentences  # its attention is that of the whole
    assert sentence.citations[0].document == row["document"][np.argmax(attentive.attention)]


def test_n_best_and_the_printed_form(plain):
    row = plain.prepare({"id": "a", "title": "The mill", "documents": DOCUMENTS})
    summary = plain.summarize_rows([row], plain.choose({"n_best": 3}))[0]
    scores = [summary.score, *(other.score for other in summary.alternatives)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    printed = plain.summarize_rows([row])[0].to_dict()
    kept = {"id", "summary", "sentences", "attention", "score", "support", "unsupported", "warnings"}
    assert set(printed) == kept and set(summary.to_dict()) == {*kept, "alternatives"}
    assert [f"  next best: {other.summary}" for other in summary.alternatives] == summary.render().splitlines()[-2:]
    assert summary.render().splitlines()[1].startswith(f"  {summary.sentences[0].text} [1]")
    assert set(printed["sentences"][0]) == {"text", "start", "end", "citations", "support", "unsupported"}
    told = {
        "document",
        "paragraph",
        "weight",
        "source",
        "quote",
        "start",
        "end",
        "is_extracted",
        "place",
        "file_start",
        "file_end",
    }
    assert set(printed["sentences"][0]["citations"][0]) == told


def test_an_empty_summary_is_told(plain):
    options = {"max_length": 1, "forced_eos_token_id": plain.vocabulary.marks.end}
    row = plain.prepare({"id": "a", "title": "The mill", "documents": DOCUMENTS})
    (summary,) = plain.summarize_rows([row], plain.choose(options))
    assert summary.summary == "" and summary.to_dict()["warnings"] == ["no summary: the model ended at once"]
    assert "warning: no summary" in summary.render()


def test_bf16_is_near_fp32(folder, plain):
    settings = plain.choose({"no_repeat_ngram_size": 0, "max_length": 6})
    row = plain.prepare(CLUSTER)
    exact = plain.summarize_rows([row], settings)[0].score
    near = Summarizer.load(folder / "plain", dtype="bf16").summarize_rows([row], settings)[0].score
    assert near != exact
    assert near == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("documents", "said"),
    [([], "no documents"), (["", " \n "], "no text"), (["text", 3], "neither a text"), ("text", "list")],
)
def test_unusable_documents_are_named(plain, documents, said):
    with pytest.raises(UserError, match=f"The mill.*{said}"):
        plain.summarize("The mill", documents)


def test_a_title_may_be_left_out(plain):
    without = plain.summarize(documents=DOCUMENTS)
    assert without.summary and without.sentences
    assert [without] == plain.summarize_many([{"documents": DOCUMENTS}]) == [plain.summarize("", DOCUMENTS)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("plain", {"beta": 0.4}, "beta=0.4 needs the attention predictor.*raysum train alignment"),
        ("plain", {"keep_paragraphs": 3}, "keep_paragraphs=3 needs the attention predictor"),
        ("plain", {"num_beam": 3}, "did you mean 'num_beams'"),
        ("plain", {"dtype": "fp16"}, "dtype: .*'fp32', 'bf16' or 'int8'"),
        ("plain", {"forced_bos_token_id": 10**6}, "forced_bos_token_id=1000000 is no token: .*plain has ids up to"),
        ("plain", {"extractive": 0.4}, "extractive=0.4 needs a learned ranker.*raysum train ranker"),
        ("plain", {"ranker": "flat"}, "flat is no ranker.*family.*raysum train ranker"),
        ("plain", {"ranker": "nothere"}, "no run folder nothere"),
        ("ranker", {}, "ranker writes no summaries"),
        ("nothere", {}, "nothere"),
        ("tdmca", {"gnmt_coverage": 0.1}, "a tdmca does not attend to all source tokens.*gnmt_coverage"),
    ],
)
def test_settings_are_checked(folder, monkeypatch, name, options, message):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=message):
        Summarizer.load(name, **options)


def test_no_summary_begins_with_padding(plain):
    with pytest.raises(UserError, match="is padding, which begins no summary; leave it out"):
        plain.summarize_rows([], plain.choose({"forced_bos_token_id": plain.model.spec.marks.pad}))


def test_changed_settings_are_checked(folder, plain):
    last = plain.model.spec.vocabulary - 1
    for key in ("forced_bos_token_id", "forced_eos_token_id"):
        assert getattr(plain.choose({key: last}), key) == last
        with pytest.raises(UserError, match=f"{key}={last + 1} is no token: .*plain has ids up to {last}"):
            plain.choose({key: last + 1})
    assert plain.choose({"beam_size": 2}).num_beams == 2
    with pytest.raises(UserError, match="loaded with the model"):
        plain.choose({"ranker": str(folder / "ranker")})


def test_a_ranker_of_another_vocabulary_is_refused(folder, tmp_path):
    shutil.copytree(folder / "ranker", tmp_path / "ranker")
    Vocabulary.train(["some other text, of a few words"], 40, tmp_path / "other.model")
    ranker, other = Run(tmp_path / "ranker"), tmp_path / "other.model"
    ranker.create(ranker.config, ranker.recipe | {"vocabulary_sha256": load_tokenizer(other).sha256}, other)
    with pytest.raises(UserError, match="ranker was trained with another vocabulary"):
        Summarizer.load(folder / "plain", ranker=str(tmp_path / "ranker"))


def test_weights_of_another_model_are_refused(folder, tmp_path):
    run = Run.open(folder / "plain")
    other = Run(tmp_path / "other")
    spec = run.config.model.model_copy(update={"width": 16})
    other.create(run.config.model_copy(update={"model": spec}), run.recipe, run.vocabulary)
    other.checkpoint_path(1).mkdir()
    (other.checkpoint_path(1) / "weights.safetensors").write_bytes(run.best().weights.read_bytes())
    with pytest.raises(UserError, match="does not fit the model"):
        Summarizer.load(other.path)


LINE = json.dumps({"id": "x", "title": "T", "documents": ["a\u2028b"]}, ensure_ascii=False)


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """The paths of two data files and three texts, by their names."""
    texts = {"data.jsonl": LINE + "\n" + json.dumps({"title": "U", "documents": ["c"]}) + "\n", "two": "second text"}
    texts |= {"one.txt": "first text", "parts.txt": "first text\n---\nsecond text\n---\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in (*texts, "nothere.txt")}


def test_clusters_from_files(files):
    found = input_clusters([files["data.jsonl"], files["one.txt"], files["two"]], "Subject")
    assert [cluster["id"] for cluster in found] == ["x", "data.jsonl:2", "Subject"]
    named = [{"source": "one.txt", "text": "first text"}, {"source": "two", "text": "second text"}]
    assert found[2]["documents"] == named
    for given, title, message in ((files["data.jsonl"], "S", "--title"), (files["nothere.txt"], "", "nothere.txt")):
        with pytest.raises(UserError, match=message):
            input_clusters([given], title)


def test_a_separator_splits_texts_and_paths_are_for_rows(files, tmp_path, monkeypatch):
    texts = [files["parts.txt"], files["two"]]
    (cluster,) = input_clusters(texts, mapping=FieldMapping.of([], "---"))
    parts = {"parts.txt, part 1": "first text", "parts.txt, part 2": "second text", "two": "second text"}
    documents = [{"source": name, "text": text} for name, text in parts.items()]
    assert cluster == {"id": tmp_path.name, "title": "", "documents": documents}
    for given in (texts, ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"some text")))
        with pytest.raises(UserError, match=r"--map .* is plain text"):
            input_clusters(given, mapping=FieldMapping.of(["documents=articles[].text"]))


def test_standard_input_is_json_lines_or_one_text_in_utf_8(monkeypatch):
    def given(content: bytes, title: str = "") -> list:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return input_clusters(["-"], title)

    assert given(f"\n{LINE}\n\n".encode()) == [json.loads(LINE)]
    assert given("\ufeffein Bär".encode(), "T")[0]["documents"] == [{"source": "standard input", "text": "ein Bär"}]
    assert given(b"B\xe4r")[0]["documents"] == [{"source": "standard input", "text": "Bär"}]
    assert given(b'{"a"}\n')[0].error.startswith("standard input:1: not JSON")
    readable, unreadable = given(b'{"title": "T"}\n{"title": "\xe4"}')
    assert readable["title"] == "T" and unreadable.error.startswith("standard input:2: not UTF-8 (byte 11; ")


@pytest.mark.parametrize("system", ["plain", "lexrank"])
def test_a_bad_cluster_is_answered_with_its_error_beside_the_others(folder, tmp_path, capsys, monkeypatch, system):
    rows = [json.dumps({"id": name, "documents": DOCUMENTS}) for name in ("a", "b")]
    bad = ["{broken", '["T"]', '{"id": "empty", "documents": [""]}']
    (tmp_path / "data.jsonl").write_text("\n".join([rows[0], *bad, rows[1]]))
    run, page = str(folder / system) if system == "plain" else system, tmp_path / "page.html"
    command = ["raysum", "summarize", run, str(tmp_path / "data.jsonl"), "--json", "--html", str(page)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [line["id"] for line in lines] == ["a", "data.jsonl:2", "data.jsonl:3", "empty", "b"]
    assert [line for line in lines if "summary" in line] == [lines[0], lines[4]]
    assert "data.jsonl:2: not JSON" in lines[1]["error"] and "cannot be summarized" in lines[3]["error"]
    assert ended.value.code == 2 and "3 of 5 clusters have no summary; the first of them: " in shown.err
    assert page.read_text().count('class="raysum"') == 2


def test_another_vocabulary_is_refused(folder, tmp_path):
    shutil.copytree(folder / "plain", tmp_path / "run")
    Vocabulary.train(["some other text, of a few words"], 40, tmp_path / "run" / "vocabulary.model")
    with pytest.raises(UserError, match="is not the vocabulary"):
        Summarizer.load(tmp_path / "run")
