"""What trainings ask of a cluster: its nodes, its interfaces, and what they wait for."""

import psutil
import pytest

from helpers.small_datasets import write_dataset
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runtime import forkserver
from raysum.runtime.placement import Capacity, Share, check_fits
from raysum.train.fit import fit
from raysum.train.group import interface_of
from raysum.train.optim import check_engine_config


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "expected"), [(16, 0, 4, 4), (16, 8, 4, 2), (16, 2, 4, 4), (3, 0, 4, 0)]
)
def test_trainings_side_by_side_take_gpus_or_else_cpus(cpus, gpus, workers, expected):
    assert Capacity(cpus, gpus).trainings(workers) == expected


def test_an_address_has_its_interface():
    named = {one.address: name for name, own in psutil.net_if_addrs().items() for one in own}
    assert interface_of("127.0.0.1") == named["127.0.0.1"]
    assert interface_of("192.0.2.1") is None  # of no machine (RFC 5737)


@pytest.mark.parametrize("part", ["offload_optimizer", "offload_param"])
def test_offloading_to_nvme_is_refused(part):
    config = Config(deepspeed={"zero_optimization": {"stage": 3, part: {"device": "nvme", "nvme_path": "/tmp"}}})
    with pytest.raises(UserError, match=rf"{part}.device=nvme .*set it to cpu"):
        check_engine_config(config)


def test_processes_are_not_copied_beside_gpus_of_any_maker(tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(forkserver, "_GPUS", (str(tmp_path / "kfd"),))
    monkeypatch.setattr(forkserver, "_server", None)
    forkserver.start("train")
    assert forkserver._server is None


@pytest.mark.slow
def test_workers_that_no_node_holds_are_refused_and_others_waited_for(ray_session, tmp_path, capsys):
    with pytest.raises(UserError, match=r"3 workers with 2 CPUs each do not fit .* hold 2: .*train.workers=2"):
        check_fits(3, Share(2.0, 0.0))
    with pytest.raises(UserError, match="1 workers with 1 CPUs and 1 GPUs each do not fit"):
        check_fits(1, Share(1.0, 1.0))
    check_fits(2, Share(2.0, 0.0))
    data = write_dataset(tmp_path / "data", {"train": 40})
    model = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "F"}
    train = {"steps": 1, "batch_tokens": 200, "micro_batches": 2, "workers": 2, "threads": 1, "placement": "pack"}
    assert fit(Config(model=model, train=train, data=str(data), out=str(tmp_path / "run"))).latest().step == 1
    assert "Waiting" not in capsys.readouterr().err
