"""The loss of a run: Python peers with the schema of hivemind's examples read what cohive trainers tell, and cohive-monitor what they tell."""

import json
import subprocess
import time
import urllib.request
from typing import Dict

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.dht.crypto import RSASignatureValidator  # noqa: E402
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator  # noqa: E402
from hivemind.optim.progress_tracker import ProgressTracker  # noqa: E402
from hivemind.utils import get_dht_time  # noqa: E402
from pydantic.v1 import BaseModel, StrictFloat, confloat, conint  # noqa: E402

PATIENCE = 60


class LocalMetrics(BaseModel):
    """As examples/albert of hivemind has it."""

    step: conint(ge=0, strict=True)
    samples_per_second: confloat(ge=0.0, strict=True)
    samples_accumulated: conint(ge=0, strict=True)
    loss: StrictFloat
    mini_steps: conint(ge=0, strict=True)


class MetricSchema(BaseModel):
    metrics: Dict[BytesWithPublicKey, LocalMetrics]


@pytest.fixture(scope="module")
def bootstrap(program):
    process = subprocess.Popen([program("cohive-bootstrap"), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json"], stdout=subprocess.PIPE,
                               text=True)
    yield json.loads(process.stdout.readline())["initial_peers"]
    process.kill()
    process.wait()


@pytest.fixture
def python_peer(bootstrap, request):
    """A DHT of Python hivemind with the validators of its examples, and the subkey that it owns."""
    signer = RSASignatureValidator()
    dht = hivemind.DHT(initial_peers=bootstrap, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"],
                       record_validators=[SchemaValidator(MetricSchema, prefix=request.param), signer])
    yield dht, signer.local_public_key
    dht.shutdown()


def wait_for(what):
    give_up = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < give_up, "it does not come"
        time.sleep(0.2)
    return found


def monitor(program, bootstrap, run_id):
    output = subprocess.run([program("cohive-monitor"), "--once", "--json", "--run-id", run_id, "--initial-peers", *bootstrap],
                            capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    return json.loads(output)


@pytest.mark.parametrize("python_peer", ["my_run"], indirect=True)
def test_a_python_monitor_reads_the_loss_of_a_cohive_trainer(program, bootstrap, python_peer, tmp_path):
    dht, _ = python_peer
    (tmp_path / "text").write_text("In the beginning was the Word, and the Word was with others. " * 200)
    trainer = subprocess.Popen([program("cohive-train"), "--text", tmp_path / "text", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--run-id",
                                "my_run", "--width", "16", "--layers", "1", "--context", "16", "--target-batch-size", "2000",
                                "--matchmaking-time", "1", "--initial-peers", *bootstrap], stdout=subprocess.DEVNULL)
    try:
        found = wait_for(lambda: dht.get("my_run_metrics", latest=True)).value
        (record,) = (LocalMetrics.parse_obj(entry.value) for entry in found.values())
        assert record.step >= 1 and record.mini_steps > 0 and record.samples_accumulated > 0 and record.samples_per_second > 0
        assert 0.1 < record.loss / record.mini_steps < 10  # of a small model of text
        seen = wait_for(lambda: (now := monitor(program, bootstrap, "my_run"))["loss"] and now)
        assert 0.1 < seen["loss"] < 10 and seen["trainers"][0]["loss"] is not None
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.parametrize("python_peer", ["their_run"], indirect=True)
def test_the_monitor_reads_the_loss_of_a_python_trainer(program, bootstrap, python_peer):
    dht, owner = python_peer
    tracker = ProgressTracker(dht, "their_run", target_batch_size=1000, start=True)
    try:
        tracker.report_local_progress(900, 100)
        metrics = LocalMetrics(step=900, samples_per_second=5.0, samples_accumulated=1000, loss=30.0, mini_steps=10)
        assert dht.store("their_run_metrics", metrics.dict(), get_dht_time() + 600, subkey=owner)
        seen = wait_for(lambda: (now := monitor(program, bootstrap, "their_run"))["epoch"] == 900 and now["loss"] == 3 and now)
        assert [trainer["loss"] for trainer in seen["trainers"] if trainer["epoch"] == 900] == [3]
        with subprocess.Popen([program("cohive-monitor"), "serve", "--json", "--run-id", "their_run", "--metrics-address", "127.0.0.1:0",
                               "--initial-peers", *bootstrap], stdout=subprocess.PIPE, text=True) as serving:
            page = json.loads(serving.stdout.readline())["page"]

            def python_trainer():
                with urllib.request.urlopen(page + "api/v1/state") as answer:
                    state = json.load(answer)
                return [peer for peer in state["peers"] if peer["id"] == str(dht.peer_id) and peer["reachable"]]

            try:
                (peer,) = wait_for(python_trainer)
                assert peer["software"] == "hivemind", peer["agent"]
            finally:
                serving.kill()
    finally:
        tracker.shutdown()
