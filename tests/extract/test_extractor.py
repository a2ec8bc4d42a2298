"""The extractor that is trained in a minute: its features, cues and trees, its training, and what it then takes."""

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer

import raysum
from helpers.browsing import Page
from raysum.config.loading import load_config
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.extract.explanation import EXPLANATION, explanation_of, gain_shares
from raysum.extract.features import (
    INPUTS,
    LABELS,
    RANKED,
    Cues,
    CueValues,
    columns,
    cue_features,
    cue_names,
    cues_of,
    features,
)
from raysum.extract.learning import Inputs, Trees, train
from raysum.extract.untrained import UntrainedComparison, UntrainedSystem
from raysum.pages.charts import LONGEST
from raysum.prepare.row_builder import as_sentences
from raysum.runs.folder import Run
from raysum.runtime.checksums import seal
from raysum.runtime.compat import boosted_trees

WIDTH = 1 << 12


def row(texts: list[str], documents: list[int], title: str = "") -> Row:
    places = [sum(other == own for other in documents[:number]) for number, own in enumerate(documents)]
    return {
        "title": title,
        "text": texts,
        "document": np.array(documents, np.int32),
        "paragraph": np.array(places, np.int32) // 2,
        "source": [f"Section {number} of 1987" for number in range(max(documents) + 1)],
    }


SENTENCES = [
    *("The Arno runs to Pisa.", "It is 241 km long."),
    *("Few bridges cross the Arno.", "Pisa (a city) leans, they say."),
]
PLAIN = row(SENTENCES, [0, 0, 1, 1], "The Arno")


def test_features_are_positions_and_shared_words():
    found, whole = columns(PLAIN), features(PLAIN)
    assert whole.shape == (4, len(found) + len(RANKED)) and np.isfinite(whole).all()
    expected = {
        "place": [0, 1, 2, 3],
        "place_in_document": [0, 1, 0, 1],
        "left_in_document": [2, 1, 2, 1],
        "documents": [2] * 4,
        "words": [5, 5, 5, 6],
        "share_of_document": [5 / 10, 5 / 10, 5 / 11, 6 / 11],
        "share_of_title": [1, 0, 1, 0],
        "digits": [0, 3 / 18, 0, 0],
        "brackets": [0, 0, 0, 1],
    }
    # By all pairs: the mean cosine to the sentences of the other document. Pisa and Arno are in both documents.
    vectors = TfidfVectorizer(token_pattern=r"\w+").fit_transform(SENTENCES)
    cosines = (vectors @ vectors.T).toarray()
    others = [cosines[0, 2:].mean(), 0, cosines[2, :2].mean(), cosines[3, :2].mean()]
    expected |= {"near_other_documents": others, "near_own_document": cosines[[0, 1, 2, 3], [1, 0, 3, 2]]}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)
    assert others[0] > 0 < others[3]


@pytest.mark.parametrize(
    "given", [row(["Ein Satz."], [0]), row(["阿诺河流经比萨。", "!"], [0, 2]), row(["a"] * 600, [0] * 600)]
)
def test_features_and_cues_of_odd_rows_are_numbers(given: Row):
    cues = cues_of(given, WIDTH)
    found = np.concatenate([features(given), cue_features(cues, [np.zeros(WIDTH, np.float32)] * 2)], 1)
    assert len(found) == len(given["text"]) and np.isfinite(found).all()


def test_cues_are_words_signs_and_pairs_and_names_differ_by_words_alone():
    texts = Cues.of(["We show we show.", "We"], 1 << 30)
    assert texts.counts.tolist() == [3 + 3, 1]  # we, show, "."; we show, show we, show .
    assert set(texts.places[6:]) < set(texts.places[:6])
    _, names = cues_of(PLAIN, 1 << 30)
    first, second = names.places[: names.counts[0]], names.places[names.counts[:2].sum() :][: names.counts[2]]
    assert set(first) == set(second)


def test_every_input_has_a_label():
    inputs = Inputs.of(PLAIN, WIDTH).array([np.zeros(WIDTH, np.float32)] * 2)
    assert [*columns(PLAIN)] == [*LABELS] and inputs.shape[1] == len(INPUTS)
    assert max(map(len, INPUTS)) <= LONGEST
    # The last column is the rank of the first one of cues, which is the mean value of the sentence's words.
    assert INPUTS[len(LABELS) + len(RANKED)] == INPUTS[-1] == "values of its words"


def test_a_cue_is_named_by_its_most_frequent_text():
    texts = ["we show that", "we show", "rivers of Pisa"]
    (show,) = {*Cues.of(["show"], WIDTH).places}
    (of_we,) = {*Cues.of(["we"], WIDTH).places}
    assert cue_names(texts, {show, of_we}, WIDTH) == {show: "show", of_we: "we"}
    assert cue_names(["a b", "b a a", "b"], range(1), 1) == {0: "a"}  # all in one place
    cues = Cues.of(texts, WIDTH)
    assert cues.having([show]).tolist() == [0, 1] and cues.having([*cues.places[-2:]]).tolist() == [2]


def test_gains_are_those_of_the_deciding_features():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(2000, len(INPUTS))).astype(np.float32)
    values = 3 * inputs[:, 11] + inputs[:, 0] + inputs[:, 1]
    shares = gain_shares(boosted_trees(HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(inputs, values)))
    assert [*shares][:2] == [INPUTS[11], INPUTS[0]] and INPUTS[0] == INPUTS[1]
    assert sum(shares.values()) == pytest.approx(1) and shares[INPUTS[11]] > 0.7


def test_the_values_of_cues_leave_out_the_own_cluster():
    generator = np.random.default_rng(0)
    texts = [[" ".join(generator.choice([*"abcdefgh"], 4)) for _ in range(5)] for _ in range(6)]
    examples = [(Cues.of(one, WIDTH), generator.random(5)) for one in texts]
    worth = CueValues(WIDTH, 3, examples)
    for number, example in enumerate(examples):
        others = CueValues(WIDTH, 3, [one for place, one in enumerate(examples) if place != number])
        np.testing.assert_allclose(worth.table(example), others.table(), atol=1e-6)
    known = CueValues(WIDTH, 1, [(Cues.of(["x", "y"], WIDTH), np.array([1.0, 0.0]))])
    (x,), (y,) = (Cues.of([name], WIDTH).places for name in "xy")
    assert known.table()[[x, y]].tolist() == [(1 + 0.5) / 2 - 0.5, 0.5 / 2 - 0.5]


def test_stored_trees_predict_what_scikit_learn_predicts():
    generator = np.random.default_rng(0)
    inputs, told = generator.normal(size=(3000, 6)).astype(np.float32), generator.normal(size=3000)
    model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(inputs, told + inputs[:, 0] ** 2)
    arrays = boosted_trees(model)
    new = generator.normal(size=(1500, 6)).astype(np.float32)
    np.testing.assert_allclose(Trees.read(arrays).predict(new), model.predict(new), atol=1e-12)
    assert Trees.read(arrays).predict(new[:0]).shape == (0,)
    with pytest.raises(ValueError, match="left"):
        Trees.read(arrays | {"left": arrays["left"] + 10_000})
    with pytest.raises(ValueError, match="sizes"):
        Trees.read(arrays | {"value": arrays["value"][:, 1:]})


def test_paragraphs_become_sentences_in_the_order_of_the_documents():
    given: Row = {
        "id": "x",
        "title": "t",
        "text": ["C one is red. C two is blue.", "A one is red. A two is blue.", "B is not red."],
        "document": np.array([2, 0, 0], np.int32),
        "paragraph": np.array([0, 0, 1], np.int32),
        "char_start": np.array([0, 0, 40], np.int32),
    }
    found = as_sentences(given)
    assert "|".join(found["text"]) == "A one is red.|A two is blue.|B is not red.|C one is red.|C two is blue."
    assert found["document"].tolist() == [0, 0, 0, 2, 2] and found["paragraph"].tolist() == [0, 0, 1, 0, 0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of invented clusters."""
    folder = tmp_path_factory.mktemp("extractor")
    for split, count in (("train", 120), ("valid", 20), ("test", 30)):
        lines = [json.dumps(cluster) for cluster in generate(split, count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    raysum.prepare(sorted(folder.glob("*.jsonl")), folder / "data", kind="extraction", vocab_size=300)
    return folder / "data"


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    raysum.train("extractor", data=str(data), out=str(data.parent / "run"), model={"trees": 40})
    return data.parent / "run"


def test_a_trained_run_does_not_train_again(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    weights = "checkpoints/step-00000040/weights.safetensors"
    before = (run / weights).read_bytes()
    given: dict = {"data": str(data), "out": str(run), "model": {"trees": 40}}
    raysum.train("extractor", **given)
    assert "is trained" in capsys.readouterr().err
    with pytest.raises(UserError, match="another config or dataset"):
        raysum.train("extractor", **given | {"model": {"trees": 50}})
    for changes in ({"train": {"init_from": str(run)}}, {"train": {"minutes": 1}}, {"decode": {"beta": 0.4}}):
        with pytest.raises(UserError, match=f"does not use {[*changes][0]} settings: leave them out"):
            raysum.train("extractor", **given | {"out": str(run.with_name("x")), **changes})
    raysum.train("extractor", **given | {"out": str(run.with_name("again"))})
    assert (run.with_name("again") / weights).read_bytes() == before


def test_targets_give_other_trees(data: Path):
    outs = {target: data.parent / target for target in ("rouge2", "rougeL", "support")}
    for target, out in outs.items():
        raysum.train("extractor", data=str(data), out=str(out), model={"trees": 3, "target": target})
    weights = [(out / "checkpoints/step-00000003/weights.safetensors").read_bytes() for out in outs.values()]
    assert len({*weights}) == 3


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_dtype_is_refused(run: Path, dtype: str):
    with pytest.raises(UserError, match=f"dtype={dtype} is for matrices, but .*run has trees: leave it out"):
        raysum.load(str(run), dtype=dtype)


def test_it_is_compared_with_systems_without_training_as_they_are_served(run: Path, data: Path):
    explanation = explanation_of(Run(run))
    comparison, words = explanation.comparison, Run(run).extract.words
    found = raysum.evaluate(run, data, split="valid", scorers=["rouge"], decode={"words": words})
    rouge2 = {name: figures["rouge2"] for name, figures in found.systems.items()}
    assert (comparison.clusters, comparison.words) == (20, words)
    assert comparison.rouge2 == pytest.approx(rouge2["run"])
    for name in ("lead", "lexrank", "mmr"):
        other, expected = comparison.others[name], found.differences[f"run - {name}"]
        assert other.rouge2 == pytest.approx(rouge2[name])
        bounds = [expected[f"rouge2{end}"] for end in ("", "_low", "_high")]
        assert [other.difference, other.low, other.high] == pytest.approx(bounds)
    assert f"run is {'not ' * (not comparison.is_ahead)}ahead of {comparison.best}," in comparison.sentence("run")


def test_a_run_that_is_not_ahead_names_the_system_to_use():
    lead = UntrainedSystem(rouge2=20.4, difference=-0.9, low=-1.9, high=0.1)
    others = {"lead": lead, "mmr": UntrainedSystem(rouge2=15, difference=4.5, low=3, high=6)}
    comparison = UntrainedComparison(clusters=200, words=21, rouge2=19.5, others=others)
    assert comparison.sentence("runs/x") == (
        "runs/x is not ahead of lead, which needs no training: 19.5 and 20.4 ROUGE-2 (95 % interval of the difference "
        "-1.9 to 0.1; 200 validation clusters, at most 21 words); use lead: `raysum serve lead --set words=21`"
    )
    ahead = comparison.model_copy(update={"others": {"mmr": others["mmr"]}})
    assert ahead.is_ahead and "ahead of mmr, the best system without training, by 4.5: 19.5 and 15.0" in ahead.sentence(
        "x"
    )


def test_a_training_ends_with_the_comparison(data: Path, capsys: pytest.CaptureFixture[str]):
    values: dict = {"data": str(data), "model": {"trees": 5}}
    raysum.train("extractor", out=str(data.parent / "compared"), **values)
    comparison = explanation_of(Run(data.parent / "compared")).comparison
    assert capsys.readouterr().err.splitlines()[-1] == comparison.sentence("compared")
    run = train(load_config("extractor", (), {**values, "out": str(data.parent / "alone")}), compared=False)
    assert explanation_of(run).comparison is None and "ahead" not in capsys.readouterr().err


def test_the_report_shows_what_an_extractor_has_learned(run: Path, tmp_path: Path):
    explanation, new = explanation_of(Run(run)), shutil.copytree(run, tmp_path / "new")
    shutil.rmtree(new / "evaluation", ignore_errors=True)
    raysum.report(new, out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert explanation.comparison.sentence("new") in page.texts[""]
    text, cells = page.texts["features"], page.cells["features"]
    for name, share in [*explanation.gains.items()][:15]:
        assert f"{name}: {100 * share:.1f} % of the total gain" in text
    highest = max(explanation.word_cues, key=explanation.word_cues.__getitem__)
    assert cells[1][:2] == [highest, f"{100 * explanation.word_cues[highest]:+.1f}"]
    lowest = min(explanation.word_cues, key=explanation.word_cues.__getitem__)
    assert cells[1][2:] == [lowest, f"{100 * explanation.word_cues[lowest]:+.1f}"]
    old = shutil.copytree(new, tmp_path / "old")
    (old / EXPLANATION).unlink()
    raysum.report(old, out=tmp_path / "old.html")
    texts = Page(tmp_path / "old.html").texts
    assert "features" not in texts and "lowest validation loss" in texts[""]
    (old / EXPLANATION).write_text((run / EXPLANATION).read_text().replace('"gains"', '"gain"'))
    with pytest.raises(UserError, match=f"{EXPLANATION}.*restore|{EXPLANATION}.*remove|{EXPLANATION}.*copy"):
        raysum.report(old, out=tmp_path / "old.html")


def test_it_takes_better_sentences_than_systems_without_training(run: Path, data: Path):
    for length in (True, False):
        found = raysum.evaluate(run, data, split="test", reference_length=length, scorers=["rouge"])
        named = [f"{name}{'-paper' * length}" for name in ("run", "lead", "lexrank", "mmr")]
        assert [*found.systems] == named + ["lexrank"] * length
        own, *others = [found.systems[name]["rouge2"] for name in named[:3]]
        assert own > max(others)
    assert all("at most" in how for how in found.how.values())


def test_a_served_system_gets_the_length_of_each_reference(data: Path):
    found = raysum.evaluate(
        "lexrank", data, split="test", reference_length=True, scorers=["rouge"], out=data.parent / "at"
    )
    outputs = [json.loads(line) for line in (data.parent / "at" / "outputs.jsonl").read_text().splitlines()]
    lengths = [(len(line["lexrank"].split()), len(line["reference"].split())) for line in outputs]
    assert all(0 < own <= most for own, most in lengths if most > 30) and len({most for _, most in lengths}) > 1
    assert found.how["lexrank"].startswith("whole sentences, the best first, as many words as the reference")


@pytest.mark.long
@pytest.mark.slow
def test_on_papers_it_is_far_better_than_systems_without_training(shared: Path, tmp_path: Path):
    source = shared / "data/scisummnet"
    with gzip.open(source / "train.jsonl.gz", "rt") as file:
        (tmp_path / "train.jsonl").write_text("".join(islice(file, 150)))
    sources = [tmp_path / "train.jsonl", source / "valid.jsonl.gz"]
    raysum.prepare(sources, tmp_path / "data", kind="extraction", vocab_size=1000)
    raysum.train("extractor", data=str(tmp_path / "data"), out=str(tmp_path / "run"))
    found = raysum.evaluate(tmp_path / "run", tmp_path / "data", split="valid", reference_length=True)
    for name in ("lead", "lexrank", "mmr"):
        assert found.differences[f"run-paper - {name}-paper"]["rouge2_low"] > 1, name


def test_it_summarizes_raw_text_in_whole_sentences_with_their_places(run: Path):
    (cluster,) = generate("test", 1)
    found = raysum.load(str(run)).summarize(cluster["title"], cluster["documents"], sentences=3)
    assert len(found.sentences) == 3 and found.support == 100
    for sentence in found.sentences:
        (cited,) = sentence.citations
        text = cluster["documents"][cited.document]["text"]
        assert text[cited.start : cited.end] == cited.quote and sentence.text == " ".join(cited.quote.split())
    assert found.warnings == []
    longer = raysum.load(str(run)).summarize("", ["A sentence of five words. " * 2001], sentences=1)
    assert longer.warnings == ["only the first 2000 sentences are read"]
    with pytest.raises(UserError, match="cannot be summarized"):
        raysum.load(str(run)).summarize("", ["—"])


def test_it_also_learns_from_rows_of_paragraphs(data: Path):
    plain, out = data.parent / "plain", data.parent / "of-paragraphs"
    raysum.prepare(sorted(data.parent.glob("*.jsonl")), plain, vocab_size=300)
    raysum.train("extractor", data=str(plain), out=str(out), model={"trees": 40})
    found = raysum.evaluate(out, plain, split="test", scorers=["rouge"], reference_length=True)
    assert found.systems["of-paragraphs-paper"]["rouge2"] > found.systems["lexrank-paper"]["rouge2"]


def test_damaged_weights_are_named(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "copy")
    step = copy / "checkpoints/step-00000040"
    arrays = load_file(step / "weights.safetensors")
    without = {name: array for name, array in arrays.items() if name != "words"}
    beyond, narrow = arrays | {"left": arrays["left"] + 10**6}, arrays | {"value": arrays["value"][:, :1]}
    for damaged in (without, beyond, narrow):
        save_file({name: array.copy() for name, array in damaged.items()}, step / "weights.safetensors")
        seal(step)
        with pytest.raises(UserError, match="no trained extractor"):
            raysum.load(str(copy))


def test_too_few_clusters_are_refused(tmp_path: Path):
    lines = [json.dumps(cluster) for cluster in generate("train", 9)]
    (tmp_path / "few.jsonl").write_text("\n".join(lines))
    raysum.prepare(tmp_path / "few.jsonl", tmp_path / "data", kind="extraction", vocab_size=300)
    with pytest.raises(UserError, match="9 clusters with a summary"):
        raysum.train("extractor", data=str(tmp_path / "data"), out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
