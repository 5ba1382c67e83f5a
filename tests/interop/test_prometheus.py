"""Prometheus reads what the programs serve, and everything in monitoring/ asks for metrics that exist."""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
TOOLS = ROOT / ".deps/prometheus/usr/bin"
PATIENCE = 60

pytestmark = pytest.mark.skipif(not (TOOLS / "promtool").exists(), reason="no Prometheus in .deps/prometheus")


def promtool(*arguments, **options):
    result = subprocess.run([TOOLS / "promtool", *arguments], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def read(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def swarm(program, tmp_path_factory):
    """The metrics addresses of a bootstrap node, of a trainer, and of a monitor of the run."""
    folder = tmp_path_factory.mktemp("swarm")
    (folder / "text").write_text("In the beginning was the Word, and the Word was with others. " * 200)
    bootstrap = subprocess.Popen([program("cohive-bootstrap"), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json",
                                  "--metrics-address", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    started = json.loads(bootstrap.stdout.readline())
    trainer = subprocess.Popen([program("cohive-train"), "--text", folder / "text", "--host-maddrs", "/ip4/127.0.0.1/tcp/0",
                                "--metrics-address", "127.0.0.1:0", "--width", "16", "--layers", "1", "--context", "16",
                                "--target-batch-size", "2000", "--matchmaking-time", "1",
                                "--initial-peers", *started["initial_peers"]], stdout=subprocess.PIPE, text=True)
    url = None
    for line in trainer.stdout:
        if line.startswith("Metrics: "):
            url = line.split()[1]
        if line.startswith("epoch") and url:
            break
    monitor = subprocess.Popen([program("cohive-monitor"), "serve", "--json", "--metrics-address", "127.0.0.1:0", "--interval", "0.5",
                                "--initial-peers", *started["initial_peers"]], stdout=subprocess.PIPE, text=True)
    monitored = json.loads(monitor.stdout.readline())["metrics"]
    give_up = time.monotonic() + PATIENCE
    while "cohive_swarm_trainer_loss{" not in (text := read(monitored)):
        assert time.monotonic() < give_up, text
        time.sleep(0.1)
    yield {"bootstrap": started["metrics"], "trainer": url, "monitor": monitored}
    for process in (monitor, trainer, bootstrap):
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def prometheus(swarm, tmp_path_factory):
    """query(EXPRESSION) of a real Prometheus with our rules that has scraped both programs."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    config["rule_files"] = [str(MONITORING / name) for name in config["rule_files"]]
    by_job = [{role: url for role, url in swarm.items() if (role == "monitor") == monitor} for monitor in (False, True)]
    for job, programs in zip(config["scrape_configs"], by_job):
        job["static_configs"] = [{"targets": [urllib.parse.urlsplit(url).netloc], "labels": {"role": role}} for role, url in programs.items()]
        job.pop("file_sd_configs", None)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([TOOLS / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                               f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"])
    base = f"http://127.0.0.1:{port}/api/v1/"

    def call(path, **parameters):
        return json.loads(read(base + path + "?" + urllib.parse.urlencode(parameters)))["data"]

    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            if len(call("query", query='up{job=~"cohive|cohive-swarm"} == 1')["result"]) == 3 and call("query", query="cohive_swarm_epoch")["result"]:
                break
        except OSError:
            pass
        assert time.monotonic() < give_up, "Prometheus does not read the programs"
        time.sleep(0.1)
    yield call
    server.kill()
    server.wait()


def expressions():
    """Every query of the rules and the dashboards."""
    for rule in rules_of("alerts.yml", "rules.yml"):
        yield rule["expr"]
    for path in sorted((MONITORING / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$job", "cohive").replace("$instance", ".*").replace("$run", ".*")
                yield expression.replace("$__rate_interval", "1m")


def rules_of(*names):
    return [rule for name in names for group in yaml.safe_load((MONITORING / name).read_text())["groups"] for rule in group["rules"]]


def test_rules_and_configuration_are_valid():
    promtool("check", "config", MONITORING / "prometheus.yml")


def test_what_is_scraped_is_what_the_document_starts():
    """A target that nobody starts would be a node that is down."""
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", (MONITORING / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for group in job["static_configs"] for target in group["targets"]]
    assert sorted(targets) == sorted(re.findall(r"127\.0\.0\.1:\d+", commands))


def test_the_targets_that_the_document_shows_are_read(tmp_path):
    """promtool reads the files of file_sd_configs, too."""
    (targets,) = re.findall(r"^```yaml\n(.*?)^```$", (MONITORING / "targets/README.md").read_text(), re.MULTILINE | re.DOTALL)
    shutil.copytree(MONITORING, tmp_path / "monitoring")
    file = tmp_path / "monitoring/targets/trainers.yml"
    file.write_text(targets)
    config = tmp_path / "monitoring/prometheus.yml"
    promtool("check", "config", config)
    file.write_text("- nonsense: 1")
    with pytest.raises(AssertionError, match="nonsense"):
        promtool("check", "config", config)


def test_alerts_fire_when_they_should():
    promtool("test", "rules", pathlib.Path(__file__).parent / "alerts_test.yml")


def test_what_the_programs_serve_follows_the_rules_of_metrics(swarm):
    for url in swarm.values():
        promtool("check", "metrics", input=read(url))


def test_every_query_names_metrics_that_exist(swarm):
    served = set(re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?[{ ]", "\n".join(read(url) for url in swarm.values()), re.MULTILINE))
    for expression in expressions():
        for name in re.findall(r"\b((?:cohive|process)_\w+)", expression):
            assert re.sub("_(bucket|sum|count)$", "", name) in served, expression
        for name in re.findall(r"\bcohive:\w+", expression):
            assert name in [rule.get("record") for rule in rules_of("rules.yml")], expression


def test_grafana_is_told_of_files_that_exist():
    provisioning = MONITORING / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/cohive.yml").read_text())["providers"]
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":") for volume in services["grafana"]["volumes"]]
    assert ["./grafana", provider["options"]["path"], "ro"] in mounted
    assert all((MONITORING / folder).is_dir() for folder, *_ in mounted)
    assert source["url"].removeprefix("http://") in " ".join(services["prometheus"]["command"])
    dashboards = [json.loads(path.read_text()) for path in (MONITORING / "grafana").glob("*.json")]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(dashboards) == 2
    for dashboard in dashboards:
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)


def test_prometheus_answers_every_query_of_the_dashboard(prometheus):
    for expression in expressions():
        prometheus("query", query=expression)
    assert float(prometheus("query", query="max(cohive_train_epoch)")["result"][0]["value"][1]) >= 0
    assert float(prometheus("query", query="process_resident_memory_bytes{role='bootstrap'}")["result"][0]["value"][1]) > 1e6


def test_prometheus_evaluates_every_rule(prometheus):
    def loaded():
        return [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]

    rules = loaded()
    assert [rule["name"] for rule in rules] == [rule.get("alert") or rule["record"] for rule in rules_of("alerts.yml", "rules.yml")]
    give_up = time.monotonic() + PATIENCE
    while any(rule["health"] == "unknown" for rule in rules):
        assert time.monotonic() < give_up
        time.sleep(0.1)
        rules = loaded()
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
