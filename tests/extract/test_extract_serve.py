"""`raysum serve lexrank`: a system without training, over the same HTTP interface, from a real process."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import raysum
from helpers.servers import serving
from helpers.small_runs import TEXTS
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.long
def test_a_system_without_training_is_served(tmp_path):
    with serving(Path("lexrank"), "words=20", "--max-characters=2000") as server:
        server.wait_until_ready()
        assert server.client.health() == {"status": "ok", "system": "lexrank"}
        answer = server.client.summarize("Florence", TEXTS, id="x")
        expected = raysum.load("lexrank", words=20).summarize("Florence", TEXTS).to_dict()
        assert answer == expected | {"id": "x", "model": {"system": "lexrank"}}
        for sentence in answer["sentences"]:
            (cited,) = sentence["citations"]
            assert TEXTS[cited["document"]][cited["start"] : cited["end"]] == cited["quote"] == sentence["text"]
        with_parts = server.client.summarize("Florence", TEXTS, id="x", outline=["headline", "themes"])
        cluster = {"title": "Florence", "documents": TEXTS}
        local = raysum.outline(raysum.load("lexrank", words=20).summarize("Florence", TEXTS), cluster)
        assert with_parts == answer | {key: local.to_dict()[key] for key in ("headline", "themes")}
        longer = server.client.summarize(documents=[*TEXTS, "佛罗伦萨位于阿诺河畔。"], words=60)
        assert len(longer["sentences"]) > len(answer["sentences"]) and longer["summary"].endswith("阿诺河畔。")
        page = httpx.get(f"{server.client.address}/docs").text
        assert "lexrank" in page and "/v1/summarize" in page and "redundancy" in page
        for documents, options, message in [
            ([""], {}, "400: cluster 'Florence' cannot be summarized: no sentence"),
            (TEXTS, {"num_beams": 2}, "400: options: unknown key .num_beams"),
            (TEXTS, {"words": 10**6}, "422: options.words"),
            (["a" * 2001], {}, "413: 2001 characters"),
        ]:
            with pytest.raises(UserError, match=message):
                server.client.summarize("Florence", documents, **options)
        clusters = {cluster["id"]: cluster for cluster in generate("test", 20)}
        (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, clusters.values())))
        raysum.prepare(tmp_path / "test.jsonl", tmp_path / "data", split="train", vocab_size=400, clone_recall=1)
        for words in (10, 60):
            raysum.evaluate("lexrank", tmp_path / "data", decode={"words": words}, out=tmp_path / f"{words}")
            for line in map(json.loads, (tmp_path / f"{words}" / "outputs.jsonl").read_text().splitlines()):
                one = clusters[line["id"]]
                served = server.client.summarize(one["title"], one["documents"], words=words)
                assert served["summary"] == line["lexrank"] != ""
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(lambda _: server.client.summarize("Florence", TEXTS, id="x"), range(40)))
        assert answers == [answer] * 40
        code, out, err = server.stop(signal.SIGTERM, group=True)
        assert (code, out, err.strip()) == (0, "", "stopping") and server.processes() == []


def test_a_system_that_needs_references_is_not_served():
    with serving(Path("oracle")) as server:
        code, _, err = server.ended(timeout=60)
        assert code == 2 and "reference summaries, which requests do not have" in err
