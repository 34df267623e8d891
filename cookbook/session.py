"""A run as a notebook sees it: what is shown, the server, the checks, and the record on disk.

A notebook makes one with `open_run`. Under `cookbook run` it writes into the folder that the command made; opened in
JupyterLab it makes a folder of its own, and its last cell writes the evidence.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
from IPython import get_ipython
from IPython.display import HTML, Markdown, display
from openai import OpenAI

from cookbook import (
    baseline,
    begin,
    checks,
    client,
    evidence,
    pictures,
    report,
)
from cookbook.catalog import Catalog, overlay
from cookbook.catalog import load as load_catalog
from cookbook.deployment import Claim, Process, Role, Source
from cookbook.errors import ChecksFailed, InputError, ServerError
from cookbook.events import Events
from cookbook.evidence import CheckResult, Evidence, RunRecord, Series, Timing
from cookbook.examples import EXAMPLES, Context, prose, source
from cookbook.formats import bash
from cookbook.launch.fleet import Fleet, launch_all
from cookbook.launch.loan import Borrowed, Loan
from cookbook.launch.loan import read as read_loan
from cookbook.launch.local import wait_until_ready
from cookbook.launch.memory import MemoryWatch
from cookbook.launch.phases import Phase, kv_cache_tokens
from cookbook.redact import Redactor

__all__ = ["RECORD", "RUN_FOLDER", "Run", "open_run"]

RUN_FOLDER = "COOKBOOK_RUN_FOLDER"
RECORD = "record.json"
RUNS = Path("runs")
# A prompt of a few tokens less than the context has room for an answer.
ROOM = 6
NOT_PUBLISHED = "No figure is published for these flags."
NOT_LAUNCHED = "The server was not launched by this run, so its log is not at hand."

T = TypeVar("T")


def open_run(recipe: str, parameters: Mapping[str, Any]) -> Run:
    """Begin a run of `recipe`.

    Args:
        recipe: Name of the recipe.
        parameters: Those of `cookbook.begin.Parameters` by name, for example a notebook's `globals()`; others are
            passed over.

    Raises:
        InputError: A parameter does not fit, or this machine lacks what the run needs.
    """
    catalog = load_catalog(overlay=overlay())
    given = os.environ.get(RUN_FOLDER)
    folder = Path(given) if given else begin.run_folder(RUNS, recipe)
    known = {name: parameters[name] for name in begin.Parameters.__dataclass_fields__ if name in parameters}
    settings = begin.Parameters(**known)
    loan = read_loan(folder) if given else None
    in_job = bool(loan and loan.job)
    storage = folder / begin.SECOND_TIER
    plan = begin.plan(catalog, recipe, settings, on_step=print, storage=storage, in_job=in_job)
    if not given:
        begin.make_run_folder(folder)
    return Run(catalog, plan.borrowing(loan) if loan else plan, folder, own=not given, loan=loan)


class Run:
    """One run of a recipe.

    Attributes:
        model: The name that clients use.
        base_url: Address of the server; empty until it is there.
        fleet: The servers that this run launched; None before, and where one was already running.
        run_id: Of the record; no other run has it.
        rehearsal: Whether this run launches a small model on a CPU.
        small: Whether the small model answers, also at a server that already ran.
        catalog: The catalog.
        plan: What the recipe comes to here.
        running: What runs: the same, or the other side of a comparison.
        folder: Of this run.
        redactor: Takes secrets out of what is shown.
        one_side: Why a comparison with and without a feature has no other side; empty where it has, or before.
    """

    def __init__(
        self, catalog: Catalog, plan: begin.Plan, folder: Path, *, own: bool, loan: Loan | None = None
    ) -> None:
        self.catalog = catalog
        self.plan = plan
        self.running = plan
        self.folder = folder
        self._own = own
        self._loan = loan
        self._events = Events(None if own else folder)
        self.redactor = Redactor.from_environ(os.environ)
        self._record = begin.record(plan, folder)
        self.run_id = self._record.run_id
        self._memory = MemoryWatch()
        self._context: Context | None = None
        self._save()
        self.model = plan.deployment.served_model_name
        self.base_url = ""
        self.fleet: Fleet | None = None
        self.one_side = ""
        self.rehearsal = plan.parameters.mode == "rehearsal"
        self.small = self.model == catalog.rehearsal.model.name

    # What a reader sees

    def about(self) -> Markdown:
        """The notices, and in a rehearsal the table of what was replaced and left out."""
        return Markdown(report.about(self.plan))

    def requirements(self) -> Markdown:
        """What has to be there before the recipe can run on its hardware, each with its source."""
        return Markdown(report.requirements(self.catalog, self.plan.recipe_deployment))

    def commands(self) -> Markdown:
        """The commands for the hardware and how to stop them, those that run here where they differ, and the reasons.

        Each flag with why it is there, how sure that is, and its source.
        """
        text = report.commands(self.plan, bash.render)
        return Markdown(f"{text}\n\n{report.reasons(self.plan.recipe_deployment)}")

    def troubleshooting(self) -> Markdown:
        """The known problems that apply to this recipe."""
        return Markdown(report.problems(self.catalog, self.plan.recipe_deployment))

    def references(self) -> Markdown:
        """The sources that this page refers to."""
        return Markdown(report.references(self.plan.recipe_deployment))

    # The server

    def start(self) -> str:
        """Launch the servers of this machine and wait until they are ready, or find the one that already runs.

        Returns:
            The address for clients.

        Raises:
            InputError: A port is in use, or vLLM is missing.
            ServerError: One did not come up, or died; the message has the root cause out of its log.
            TimeLimitError: One was not ready within `ready_timeout_s`.
        """
        if self.plan.parameters.base_url:
            self.base_url = client.server_url(self.plan.parameters.base_url)
            self._read_version(self.http())
            self._check_model()
            print(f"Using the server at {self.base_url}. It was not launched by this run.")
            return self.base_url
        own = self.plan.own
        elsewhere = [process for process in self.plan.deployment.processes if process not in own]
        if elsewhere:
            names = ", ".join(f"{process.name} on node {process.node}" for process in elsewhere)
            print(f"This node runs {', '.join(process.name for process in own)}. Start the others by their")
            print(f"commands above: {names}. The server is ready when all of them are.")
        if self._loan:
            self._borrow(self._loan)
        else:
            self._launch(self.plan, "")
        shell = get_ipython()
        if shell:
            shell.events.register("post_run_cell", self._after_cell)
        return self.base_url

    def restart(self, *, without: str, here: begin.Here | None = None) -> str:
        """Stop what runs, and launch the recipe without one of its features: the other side of a comparison.

        A rehearsal that has left the feature out anyway has the same command for both sides. It says so and keeps the
        server that runs, which stands for both.

        Args:
            without: The feature.
            here: What a rehearsal changes besides, where that shows a difference on a CPU too.

        Returns:
            The address for clients.

        Raises:
            InputError: As `start`; and for a server that this run did not launch.
            ServerError: As `start`.
            TimeLimitError: As `start`.
        """
        if self.fleet is None or self.plan.in_job:
            whose = "runs in a Slurm job, which ends with it" if self.plan.in_job else "was not launched by this run"
            self.one_side = f"The server {whose}, so it cannot be started without {without}."
            print(self.one_side)
            return self.base_url
        other = begin.plan(
            self.catalog,
            self.plan.deployment.recipe,
            self.plan.parameters,
            on_step=print,
            storage=self.folder / begin.SECOND_TIER,
            without=without,
            here=here if self.rehearsal else None,
        )
        if self.rehearsal and other.words() == self.running.words():
            print(f"Here {without} was left out from the beginning, so the server that runs stands for both sides.")
            return self.base_url
        self._stop_servers()
        print(f"The same without {without}:")
        self.running = other
        self._launch(other, f" without {without}")
        return self.base_url

    def _borrow(self, loan: Loan) -> None:
        self._note_commands(self.plan, "")
        self._memory.start()
        servers = [Borrowed(server) for server in loan.servers]
        self.fleet = Fleet(servers)
        self.base_url = self.fleet.base_url
        if loan.job:
            self._wait_for(servers, loan.job)
            self._memory.mark("ready")
        else:
            pages = ", ".join(loan.recipes)
            print(f"Using servers that `cookbook run` started for the pages of {pages}: the same command here.")
            print("Their start:")
            for server in servers:
                for phase in server.phases:
                    self._print_phase(server.process, phase)
            self._memory.mark("borrowed")
        self._add_timing("server start", max(server.phases[-1].seconds for server in self.fleet.servers))

    def _wait_for(self, servers: list[Borrowed], job: str) -> None:
        """Wait until the servers of a Slurm job are ready."""
        print(f"The servers are steps of the Slurm job {job}. This notebook runs on its first node.")
        wait_until_ready(
            servers,
            served_model_name=self.model,
            ready_timeout_s=self.plan.parameters.ready_timeout_s,
            began=time.monotonic(),
            on_phase=lambda server, phase: self._on_phase(server.process, phase),
        )
        self._read_version(self.http(servers[0].process.role))

    def _note_commands(self, plan: begin.Plan, suffix: str) -> None:
        for process in plan.own:
            record = begin.command_record(process)
            record = record.model_copy(update={"name": f"{record.name}{suffix}"})
            self._update(commands=(*self._record.commands, record))

    def _launch(self, plan: begin.Plan, suffix: str) -> None:
        began = time.monotonic()
        self._note_commands(plan, suffix)
        for process in plan.own:
            port = f", port {process.port}" if process.serves else ""
            print(f"Starting {process.name}: {' '.join(process.program[:2])}{port}. Its log: {process.name}.log")
        self._memory.start()
        self.fleet = launch_all(
            plan.own,
            logs=self.folder / "logs" / suffix.strip().replace(" ", "-"),
            served_model_name=self.model,
            ready_timeout_s=plan.parameters.ready_timeout_s,
            on_phase=self._on_phase,
        )
        self.base_url = self.fleet.base_url
        self._context = None
        self._memory.mark("ready")
        self._add_timing(f"server start{suffix}", time.monotonic() - began)

    def _on_phase(self, process: Process, phase: Phase) -> None:
        title = self._print_phase(process, phase)
        self._events.emit("phase", title=title, detail=phase.detail, seconds=round(phase.seconds, 1))

    def _print_phase(self, process: Process, phase: Phase) -> str:
        name = f"{process.name}: " if len(self.running.own) > 1 else ""
        title = f"{name}{phase.title}"
        print(f"{phase.seconds:7.1f} s  {title}{f': {phase.detail}' if phase.detail else ''}", flush=True)
        return title

    def _after_cell(self, result: Any) -> None:
        """When a cell failed because a server is dead, say why it died: the cell only saw a broken connection."""
        if result.success or self.fleet is None:
            return
        try:
            self.fleet.check_alive()
        except ServerError as error:
            self._update(server_error=str(error))
            print(f"{error}\n\n{error.log_tail}")

    def _read_version(self, http: httpx.Client) -> None:
        try:
            with http:
                version = str(http.get("/version").raise_for_status().json().get("version", ""))
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(
                f"No vLLM server answers at {str(http.base_url).rstrip('/')}: {error}.",
                "Check base_url and VLLM_API_KEY, and that it is up.",
            ) from error
        self._update(versions={**self._record.versions, "vllm": version})

    def _check_model(self) -> None:
        """Refuse a running server that serves something else, before an hour is spent on it."""
        with self.http() as http:
            served = [str(entry.get("id")) for entry in http.get("/v1/models").raise_for_status().json()["data"]]
        if self.model not in served:
            others = ", ".join(served) or "nothing"
            raise InputError(
                f"The server at {self.base_url} does not serve {self.model}; it serves {others}.",
                "Set the parameter model to a name that it serves, or base_url to another server.",
            )

    def http(self, role: Role | None = None) -> httpx.Client:
        """A client for what the openai package does not cover.

        Args:
            role: Of the server to ask; None for the one that clients use.
        """
        url = self._urls(role)[0] if role else self.base_url
        return client.http(url, self.plan.parameters.request_timeout_s)

    def _urls(self, *roles: Role) -> list[str]:
        """Addresses of the servers of these roles, also of those on other nodes; empty where they are not known."""
        if self.plan.parameters.mode == "attached":
            return []
        found = [process for process in self.running.deployment.processes if process.role in roles and process.serves]
        return [f"http://{process.host}:{process.port}" for process in found]

    def log(self, *roles: Role) -> str:
        """What the servers of these roles wrote so far, of all where none is named; empty for one that already ran."""
        servers = [] if self.fleet is None else self.fleet.of(*roles) if roles else self.fleet.servers
        return "\n".join(server.read_log() for server in servers)

    def metrics(self, *roles: Role) -> dict[str, float]:
        """Counters and gauges, each summed over its labels and over the servers of these roles.

        Without a role they are those of all engines: a router has none.
        """
        urls = self._urls(*roles) if roles else self._urls("engine", "prefill", "decode")
        with ExitStack() as stack:
            timeout = self.plan.parameters.request_timeout_s
            servers = [stack.enter_context(client.http(url, timeout)) for url in urls or [self.base_url]]
            return client.metrics(*servers)

    @property
    def max_tokens(self) -> int:
        """Length to allow for a long answer: enough to think on the hardware, little in a rehearsal."""
        limits = self.catalog.model.max_tokens, self.catalog.rehearsal.max_tokens.value
        return limits[self.small]

    @property
    def max_model_len(self) -> int | None:
        """Context length in tokens, as the server says; None where it does not."""
        with self.http() as http:
            entries = http.get("/v1/models").raise_for_status().json()["data"]
        lengths = [entry.get("max_model_len") for entry in entries if entry.get("id") == self.model]
        flag = self.running.deployment.processes[0].value("--max-model-len")
        # A router may pass the models on without their length.
        known = lengths[0] if lengths and lengths[0] else flag
        return None if known is None else int(str(known))

    def sizes(self, hardware: T, *, rehearsal: T) -> T:
        """What to measure with: on the hardware, or so that a CPU is done with it in seconds."""
        return rehearsal if self.small else hardware

    def stop_role(self, role: Role) -> None:
        """Stop the servers of a role, to see what becomes of the others."""
        for server in self.fleet.of(role) if self.fleet else ():
            server.stop()
            print(f"{server.process.name} was stopped.")

    def stop(self) -> None:
        """Stop what this run launched. Doing so again does nothing."""
        if self.fleet is None:
            return
        shell = get_ipython()
        if shell:
            # From now on a failing cell has another reason.
            with suppress(ValueError):
                shell.events.unregister("post_run_cell", self._after_cell)
        self._stop_servers()
        self.fleet = None

    def _stop_servers(self) -> None:
        assert self.fleet
        self._memory.mark("stopping")
        self.fleet.stop()
        self._memory.stop()
        shutil.rmtree(self.folder / begin.SECOND_TIER, ignore_errors=True)
        if self._loan:
            last = "with the Slurm job" if self._loan.job else "after the last page that uses them"
            print(f"The servers go on: they are of `cookbook run`, which ends them {last}.")
            self._loan = None
        else:
            print("All processes that this run started are gone.")

    # The examples

    def curl(self) -> None:
        """Ask which models there are, and a question, with curl as a reader would type it."""
        print(client.curl(f"{self.base_url}/v1/models"))
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            "max_tokens": 64,
            "reasoning_effort": "none",
        }
        print(client.curl(f"{self.base_url}/v1/chat/completions", body))

    def examples(self, *names: str) -> None:
        """Run client examples, each shown with its code, what it brought back, and its checks.

        Args:
            *names: Of `cookbook.examples.EXAMPLES`.
        """
        self._context = self._context or self._make_context()
        for name in names:
            text = f"{prose(name)}\n\n```python\n{source(name)}\n```"
            display(Markdown(text))
            outcome = EXAMPLES[name](self._context)
            if outcome.text:
                print(outcome.text)
            for result in outcome.checks:
                self.check(result)

    def _make_context(self) -> Context:
        timeout = self.plan.parameters.request_timeout_s
        first = self.plan.recipe_deployment.processes[0]
        sees = not self.small and not first.has("--language-model-only")
        limit = self.max_model_len
        return Context(
            client=OpenAI(base_url=f"{self.base_url}/v1", api_key=client.api_key(), timeout=timeout, max_retries=0),
            model=self.model,
            base_url=self.base_url,
            max_model_len=limit,
            max_tokens=self.max_tokens,
            thinks=not self.small and first.has("--reasoning-parser"),
            sees=sees,
            refuses_images=not sees,
            small=self.small,
            request_timeout_s=timeout,
            long_input_tokens=None if limit is None else limit - ROOM,
            metrics_urls=tuple(self._urls("engine", "prefill", "decode")),
            groups=int(str(self.running.deployment.processes[0].value("--data-parallel-size") or 1)),
            strict=not self._urls("router"),
        )

    # Pictures

    def timeline(self) -> HTML:
        """What the servers did until they were ready."""
        servers = self.fleet.servers if self.fleet else ()
        if not servers:
            return HTML(f"<p>{NOT_LAUNCHED}</p>")
        return pictures.timeline({server.process.name: server.phases for server in servers})

    def memory(self) -> HTML:
        """Memory in use over the run."""
        series = self._memory.series()
        return pictures.memory(series, self._memory.marks) if series else HTML(f"<p>{NOT_LAUNCHED}</p>")

    def capacity(self, *recipes: str) -> HTML:
        """Tokens that the KV cache of these recipes holds, by arithmetic; on the hardware with this run's own."""
        hardware = self.plan.parameters.mode == "hardware"
        return pictures.capacity(self.catalog, recipes, measured=self.kv_tokens() if hardware else None)

    def picture(
        self,
        title: str,
        measured: Mapping[str, Series],
        *,
        claim: str = "",
        at: float | None = None,
        log_x: bool = False,
    ) -> HTML:
        """Curves, and the published figure where they were measured on the hardware.

        Args:
            title: Of the picture.
            measured: By label. Where the claim is a ratio, the last one is what it is a ratio to.
            claim: Name of the published figure; empty for none.
            at: Where along the curve it was published; None for all of it.
            log_x: Whether x is logarithmic.
        """
        figure = self.claim(claim) if claim else None
        hardware = self.plan.parameters.mode == "hardware"
        return pictures.curves(title, measured, claim=figure, at=at, log_x=log_x, rehearsal=not hardware)

    # The checks

    def check(self, result: CheckResult) -> None:
        """Record what a check found, and show it in a line."""
        self._update(checks=(*self._record.checks, result))
        self._events.emit("check", **result.model_dump(include={"title", "verdict", "measured"}))
        print(report.check_line(result))

    def leave_out(self, name: str, title: str, *, expected: str, reason: str) -> None:
        """Record that a check was not made, and why."""
        self.check(checks.leave_out(name, title, expected=expected, reason=reason))

    def check_server(self) -> None:
        """It is ready, came up in time, serves the model with the context of the command, and has the KV cache."""
        with self.http() as http:
            status = http.get("/health").status_code
            models = http.get("/v1/models").raise_for_status().json()
        ends = [server.phases[-1].seconds for server in self.fleet.servers] if self.fleet else []
        limit = self.plan.parameters.ready_timeout_s
        self.check(checks.ready(max(ends, default=None), limit_s=limit, health_status=status))
        length = self.plan.deployment.processes[0].value("--max-model-len")
        attached = self.plan.parameters.mode == "attached"
        # A router may pass the models on without their length.
        silent = all(entry.get("max_model_len") is None for entry in models.get("data", ()))
        expected = None if attached or length is None or silent else int(str(length))
        self.check(checks.serves(models, model=self.model, max_model_len=expected))
        self._check_kv_cache()

    def _check_kv_cache(self) -> None:
        name, title = "kv_cache_tokens", "KV cache capacity"
        claim = next((c for c in self.plan.deployment.claims if c.name.startswith(name)), None)
        if claim is None:
            self.leave_out(name, title, expected=self.published(name), reason=NOT_PUBLISHED)
        elif self.fleet is None:
            self.leave_out(name, title, expected=f"{claim.value:,.0f} {claim.unit}", reason=NOT_LAUNCHED)
        else:
            tokens = kv_cache_tokens(self.log(self.plan.deployment.processes[0].role))
            self.check(checks.kv_cache_tokens(tokens, claim, self.source(claim)))

    def kv_tokens(self) -> int | None:
        """Tokens that the KV cache of the first role holds, by the log; None where it does not say."""
        tokens = kv_cache_tokens(self.log(self.running.deployment.processes[0].role))
        return sum(tokens) or None

    def claim(self, name: str) -> Claim | None:
        """A published figure for this recipe, or None."""
        return self.plan.recipe_deployment.claim(name)

    def published(self, name: str) -> str:
        """What is published under this name, for a reader; also where nothing is for this recipe."""
        figure = self.claim(name)
        return figure.statement if figure else "a published figure"

    def source(self, claim: Claim) -> Source:
        """Where a published figure comes from."""
        return self.catalog.sources[claim.source] if claim.source else checks.RECIPE

    def baseline(self, recipe: str) -> Evidence | None:
        """The newest run of another recipe in the same circumstances, which is named; None where there is none."""
        found = baseline.baseline(self.folder.parent.parent, recipe, self._record)
        print(f"Baseline: {baseline.names(found)} ({recipe})." if found else f"No baseline: no such run of {recipe}.")
        return found

    def keep(self, series: Series, name: str = "") -> Series:
        """Record a measured curve, and return it.

        Args:
            series: The curve.
            name: In place of its own, where a run measures the same twice.
        """
        kept = series.model_copy(update={"name": name}) if name else series
        self._update(series=(*self._record.series, kept))
        return kept

    def keep_answers(self, answers: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Record answers for another run to compare with, and return them."""
        self._update(answers=dict(answers))
        return answers

    def results(self) -> Markdown:
        """The table of all checks so far."""
        return Markdown(report.checks_table(self._record.checks))

    # The end

    def finish(self) -> None:
        """Stop the server, and end the notebook with an error if one of them fell short.

        Raises:
            ChecksFailed: A check fell short, or none was made.
        """
        self.stop()
        failed = [check.title for check in self._record.checks if check.verdict == "fail"]
        made = [check for check in self._record.checks if check.verdict != "left_out"]
        if self._own:
            self._write_evidence(passed=bool(made) and not failed)
        if not made:
            raise ChecksFailed("No check was made.", "A run without checks proves nothing.")
        if failed:
            raise ChecksFailed(
                f"{len(failed)} of {len(made)} checks fell short: {', '.join(failed)}.", "See the table."
            )

    def _write_evidence(self, *, passed: bool) -> None:
        end = Evidence(
            **dict(self._record),
            status="passed" if passed else "failed",
            exit_code=0 if passed else ChecksFailed.exit_code,
            ended_at=datetime.now(UTC),
        )
        path = self.folder / "evidence.json"
        evidence.write(path, Evidence.model_validate(self.redactor.value(end.model_dump(mode="json"))))
        print(f"Evidence: {path}")

    def _add_timing(self, name: str, seconds: float) -> None:
        self._update(timings=(*self._record.timings, Timing(name=name, seconds=round(seconds, 3))))

    def _update(self, **changes: Any) -> None:
        self._record = self._record.model_copy(update=changes)
        self._save()

    def _save(self) -> None:
        clean = self.redactor.value(self._record.model_dump(mode="json"))
        evidence.write(self.folder / RECORD, RunRecord.model_validate(clean))
