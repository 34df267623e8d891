"""A run as a notebook sees it: what is shown, the server, the checks, and the record on disk.

A notebook makes one with `open_run`. Under `cookbook run` it writes into the folder that the command made; opened in
JupyterLab it makes a folder of its own, and its last cell writes the evidence.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from IPython import get_ipython
from IPython.display import Markdown

from cookbook import begin, checks, client, evidence, report
from cookbook.catalog import Catalog, load, overlay
from cookbook.deployment import Claim, Source
from cookbook.errors import ChecksFailed, ServerError
from cookbook.events import Events
from cookbook.evidence import CheckResult, Evidence, RunRecord, Timing
from cookbook.formats import bash
from cookbook.launch.local import Server, launch
from cookbook.launch.phases import Phase, kv_cache_tokens
from cookbook.redact import Redactor

__all__ = ["RECORD", "RUN_FOLDER", "Run", "open_run"]

RUN_FOLDER = "COOKBOOK_RUN_FOLDER"
RECORD = "record.json"
RUNS = Path("runs")


def open_run(recipe: str, **parameters: Any) -> Run:
    """Begin a run of `recipe` with the parameters of its notebook.

    Args:
        recipe: Name of the recipe.
        **parameters: Those of `cookbook.begin.Parameters`.

    Raises:
        InputError: A parameter does not fit, or this machine lacks what the run needs.
    """
    catalog = load(overlay=overlay())
    plan = begin.plan(catalog, recipe, begin.Parameters(**parameters), on_step=print)
    folder = os.environ.get(RUN_FOLDER)
    return Run(catalog, plan, Path(folder) if folder else begin.new_run_folder(RUNS, recipe), own=not folder)


class Run:
    """One run of a recipe.

    Attributes:
        model: The name that clients use.
        base_url: Address of the server; empty until it is there.
        server: The server that this run launched; None before, and where it was already running.
    """

    def __init__(self, catalog: Catalog, plan: begin.Plan, folder: Path, *, own: bool) -> None:
        self._catalog = catalog
        self._plan = plan
        self._folder = folder
        self._own = own
        self._events = Events(None if own else folder)
        self._redactor = Redactor.from_environ(os.environ)
        self._record = begin.record(plan, folder)
        self._save()
        self.model = plan.deployment.served_model_name
        self.base_url = ""
        self.server: Server | None = None

    # What a reader sees

    def about(self) -> Markdown:
        """The notices, and in a rehearsal the table of what was replaced and left out."""
        return Markdown(report.about(self._plan))

    def requirements(self) -> Markdown:
        """What has to be there before the recipe can run on its hardware, each with its source."""
        return Markdown(report.requirements(self._catalog, self._plan.recipe_deployment))

    def commands(self) -> Markdown:
        """The commands for the hardware, and the ones that run here where these differ."""
        return Markdown(report.commands(self._plan, bash.render))

    def reasons(self) -> Markdown:
        """Why each flag is there, how sure that is, and its source."""
        return Markdown(report.reasons(self._plan.recipe_deployment))

    def troubleshooting(self) -> Markdown:
        """The known problems that apply to this recipe."""
        return Markdown(report.problems(self._catalog, self._plan.recipe_deployment))

    def references(self) -> Markdown:
        """The sources that this page refers to."""
        return Markdown(report.references(self._plan.recipe_deployment))

    # The server

    def start(self) -> str:
        """Launch the server and wait until it is ready, or find the one that already runs.

        Returns:
            Its address.

        Raises:
            InputError: The port is in use, or vLLM is missing.
            ServerError: It did not come up, or it died; the message has the root cause out of its log.
            TimeLimitError: It was not ready within `ready_timeout_s`.
        """
        parameters = self._plan.parameters
        if parameters.base_url:
            self.base_url = client.server_url(parameters.base_url)
            self._read_version()
            print(f"Using the server at {self.base_url}. It was not launched by this run.")
            return self.base_url
        process = self._plan.deployment.processes[0]
        self._update(commands=(begin.command_record(process),))
        began = time.monotonic()
        print(f"Starting {process.name}: vllm serve, port {process.port}. Its log: {process.name}.log", flush=True)
        self.server = launch(
            process,
            log=self._folder / "logs" / f"{process.name}.log",
            served_model_name=self.model,
            ready_timeout_s=parameters.ready_timeout_s,
            on_phase=self._on_phase,
        )
        self.base_url = self.server.base_url
        shell = get_ipython()
        if shell:
            shell.events.register("post_run_cell", self._after_cell)
        self._add_timing("server start", time.monotonic() - began)
        return self.base_url

    def _on_phase(self, phase: Phase) -> None:
        self._events.emit("phase", title=phase.title, detail=phase.detail, seconds=round(phase.seconds, 1))
        print(f"{phase.seconds:7.1f} s  {phase.title}{f': {phase.detail}' if phase.detail else ''}", flush=True)

    def _after_cell(self, result: Any) -> None:
        """When a cell failed because the server is dead, say why it died: the cell only saw a broken connection."""
        if result.success or self.server is None:
            return
        try:
            self.server.check_alive()
        except ServerError as error:
            self._update(server_error=str(error))
            print(f"{error}\n\n{error.log_tail}")

    def _read_version(self) -> None:
        try:
            with self.http() as http:
                version = str(http.get("/version").raise_for_status().json().get("version", ""))
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(
                f"No vLLM server answers at {self.base_url}: {error}.",
                "Check base_url and VLLM_API_KEY, and that it is up.",
            ) from error
        self._update(versions={**self._record.versions, "vllm": version})

    def http(self) -> httpx.Client:
        """A client for what the openai package does not cover."""
        return client.http(self.base_url, self._plan.parameters.request_timeout_s)

    @property
    def max_tokens(self) -> int:
        """Length to allow for a long answer: enough to think on the hardware, little in a rehearsal."""
        limits = self._catalog.model.max_tokens, self._catalog.rehearsal.max_tokens.value
        return limits[self._plan.parameters.mode == "rehearsal"]

    def stop(self) -> None:
        """Stop the server, if this run launched it. Doing so again does nothing."""
        if self.server and self.server.alive():
            shell = get_ipython()
            if shell:
                # From now on a failing cell has another reason.
                shell.events.unregister("post_run_cell", self._after_cell)
            self.server.stop()
            print("The server and all its processes are gone.")

    # The checks

    def check(self, result: CheckResult) -> None:
        """Record what a check found, and show it in a line."""
        self._update(checks=(*self._record.checks, result))
        self._events.emit("check", **result.model_dump(include={"title", "verdict", "measured"}))
        print(report.check_line(result))

    def check_ready(self) -> None:
        """The server answers, and came up within its time limit."""
        with self.http() as http:
            status = http.get("/health").status_code
        seconds = self.server.phases[-1].seconds if self.server else None
        limit = self._plan.parameters.ready_timeout_s
        self.check(checks.ready(seconds, limit_s=limit, health_status=status))

    def check_model(self) -> None:
        """The server names the model, with the context length of the command."""
        with self.http() as http:
            models = http.get("/v1/models").raise_for_status().json()
        length = self._plan.deployment.processes[0].value("--max-model-len")
        attached = self._plan.parameters.mode == "attached"
        expected = None if attached or length is None else int(str(length))
        self.check(checks.serves(models, model=self.model, max_model_len=expected))

    def check_kv_cache(self) -> None:
        """The KV cache holds what is claimed, by the server's log."""
        claim = self._plan.deployment.claim("kv_cache_tokens")
        title = "KV cache capacity"
        if claim is None:
            reason = "No figure is published for these flags."
            self.check(checks.leave_out("kv_cache_tokens", title, expected="a published figure", reason=reason))
        elif self.server is None:
            reason = "The server was not launched by this run, so its log is not at hand."
            expected = f"{claim.value:,.0f} {claim.unit}"
            self.check(checks.leave_out("kv_cache_tokens", title, expected=expected, reason=reason))
        else:
            tokens = kv_cache_tokens(self.server.read_log())
            self.check(checks.kv_cache_tokens(tokens, claim, self._source(claim)))

    def check_reasoning(self, reasoning: str | None, answer: str | None) -> None:
        """The reasoning arrives apart from the answer; left out where no reasoning parser runs."""
        flag = "--reasoning-parser"
        if any(argument.flag == flag for argument in self._plan.deployment.processes[0].arguments):
            self.check(checks.reasoning_apart(reasoning, answer))
            return
        reason = next((s.reason for s in self._plan.substitutions if s.what == flag), f"The command has no {flag}.")
        title = "Reasoning apart from the answer"
        self.check(checks.leave_out("reasoning", title, expected="two fields", reason=reason))

    def _source(self, claim: Claim) -> Source:
        return self._catalog.sources[claim.source] if claim.source else Source(title="This recipe")

    def results(self) -> Markdown:
        """The table of all checks so far."""
        return Markdown(report.checks_table(self._record.checks))

    def metrics(self) -> dict[str, float]:
        """The server's counters and gauges, each summed over its labels."""
        with self.http() as http:
            return client.metrics(http)

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
        path = self._folder / "evidence.json"
        evidence.write(path, Evidence.model_validate(self._redactor.value(end.model_dump(mode="json"))))
        print(f"Evidence: {path}")

    def _add_timing(self, name: str, seconds: float) -> None:
        self._update(timings=(*self._record.timings, Timing(name=name, seconds=round(seconds, 3))))

    def _update(self, **changes: Any) -> None:
        self._record = self._record.model_copy(update=changes)
        self._save()

    def _save(self) -> None:
        clean = self._redactor.value(self._record.model_dump(mode="json"))
        evidence.write(self._folder / RECORD, RunRecord.model_validate(clean))
