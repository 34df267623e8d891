"""The measurements that pages have in common: how much of each on the hardware, and how little in a rehearsal.

Each takes the run of the page. The sizes stand here once, so that a curve of one recipe has its points where that of
another has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from IPython.display import Markdown, display

from cookbook import accuracy as gsm8k
from cookbook import baseline, feature_checks, judging, load, machine, measure, plots
from cookbook.begin import SECOND_TIER
from cookbook.capacity import GIB, kv_bytes_per_token, offload_bytes_per_device
from cookbook.checks import VLLM_METRICS
from cookbook.deployment import Claim, Role, Source
from cookbook.evidence import Series
from cookbook.session import NOT_LAUNCHED, Run

__all__ = [
    "accuracy",
    "agents",
    "answers",
    "beam",
    "bytes_per_token",
    "decode_steps",
    "drafts",
    "first_tokens",
    "identical_after_a_hit",
    "more_cache",
    "needles",
    "one_group",
    "prefill_then_decode",
    "put_under_load",
    "returning_sessions",
    "same_as_alone",
    "second_tier_gib",
    "second_tier_grew",
    "specialised_path",
    "without_prefill",
]

BATCHES, SMALL_BATCHES = (1, 8, 32, 64), (1, 2)
LENGTHS, SMALL_LENGTHS = (1_000, 32_000, 340_000), (384, 768)
TEXTS, SMALL_TEXTS = (8_000, 128_000, 512_000, 900_000), (300, 900)
DEPTHS, SMALL_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0)
REPEATS = 3
LOAD_LIMIT_S = 3600.0
GSM8K_LIMIT_S = 4 * 3600.0
NO_LM_EVAL = "lm_eval is not installed beside this notebook. Install it: scripts/install eval."
NO_TOKENIZER = "The prompts need the tokenizer of the model, and that of a small model elsewhere is not known here."
NO_DATA = "Its data is not at hand: name a file of it in the parameter beam_1m. Nothing is claimed of it here."
SMALL_BYTES = "One byte an element stands for NVFP4 here and two for FP8: twice the tokens, by arithmetic."
REFUSED_WITHIN_S = 60.0
POOLS: tuple[Role, Role] = ("prefill", "decode")


# Time


def decode_steps(run: Run, name: str = "decode_step") -> Series:
    """Time of a decode step by batch.

    Args:
        run: Of the page.
        name: Of the curve in the evidence.
    """
    # A draft brings several tokens a step, so that an answer of few tokens would be over before all sequences decode.
    longer = 4 if run.plan.deployment.processes[0].has("--speculative-config") else 1
    with run.http() as http:
        found = measure.decode_step(
            http,
            run.model,
            run.sizes(BATCHES, rehearsal=SMALL_BATCHES),
            steps=longer * run.sizes(128, rehearsal=8),
            repeats=REPEATS,
            prompt_tokens=run.sizes(1024, rehearsal=16),
        )
    return run.keep(found, name)


def first_tokens(run: Run) -> tuple[Series, Series]:
    """Time to first token by length of the prompt, as long as the context holds it; and what the client itself takes.

    It is checked that the client is flat up to there.
    """
    limit = run.max_model_len
    lengths = [n for n in run.sizes(LENGTHS, rehearsal=SMALL_LENGTHS) if limit is None or n < limit]
    with run.http() as http:
        server = run.keep(measure.time_to_first_token(http, run.model, lengths, repeats=REPEATS, salt=run.run_id))
    own = run.keep(measure.client_cost(lengths, repeats=REPEATS))
    run.check(
        feature_checks.client_flat("client_flat", "The client hardly shows in the time to first token", own, server)
    )
    return server, own


def put_under_load(run: Run) -> None:
    """Put load on the server with `vllm bench serve`, show the percentiles, and check that all was answered."""
    prompts, concurrency = run.sizes(256, rehearsal=4), run.sizes(32, rehearsal=2)
    name, title = "load", f"Load of {concurrency} requests at a time"
    attached = run.small and not run.rehearsal
    if attached or not shutil.which("vllm"):
        reason = NO_TOKENIZER if attached else "There is no vllm command beside this notebook."
        run.leave_out(name, title, expected=f"{prompts} of {prompts} answered", reason=reason)
        return
    deployment = run.running.deployment
    words = load.command(
        run.base_url,
        run.model,
        deployment.model,
        prompts=prompts,
        concurrency=concurrency,
        input_tokens=run.sizes(4096, rehearsal=64),
        output_tokens=run.sizes(512, rehearsal=16),
        trust_remote_code=deployment.processes[0].has("--trust-remote-code"),
    )
    found = load.bench(words, time_limit_s=LOAD_LIMIT_S, folder=run.folder, offline=run.rehearsal)
    shown = run.redactor.text(found.command).replace(str(deployment.model), run.model)
    display(Markdown(f"```bash\n{shown}\n```"))
    display(plots.percentiles(found.percentiles, title=f"{title}: latency", unit="ms"))
    done = feature_checks.load_done(
        name, title, asked=found.asked, done=found.done, tokens_per_s=found.output_tokens_per_s
    )
    run.check(done)


# What is answered


def answers(run: Run) -> dict[str, tuple[int, ...]]:
    """Answers at temperature 0 as tokens, kept for other runs to compare with."""
    with run.http() as http:
        found = measure.answers(http, run.model, max_tokens=_answer_tokens(run))
    run.keep_answers(found)
    return found


def _answer_tokens(run: Run) -> int:
    return run.sizes(64, rehearsal=8)


def accuracy(run: Run, claim: str = "", *, against: str = "", points: float = 0.0) -> None:
    """Measure the accuracy on GSM8K with lm_eval; a rehearsal asks a few small sums, to go the whole way.

    Args:
        run: Of the page.
        claim: Name of the published figure; empty for none.
        against: A recipe whose newest run in the same circumstances is the baseline; empty for none.
        points: By how much the accuracy may be lower than the baseline's, in points of percent.
    """
    figure = run.claim(claim)
    title, expected = "Accuracy on gsm8k", run.published(claim)
    if not gsm8k.installed():
        run.leave_out("accuracy", title, expected=expected, reason=NO_LM_EVAL)
        return
    own = run.plan.parameters.gsm8k
    found = gsm8k.evaluate(
        run.base_url,
        run.model,
        questions=gsm8k.SMALL_QUESTIONS if run.small else Path(own) if own else None,
        limit=run.sizes(None, rehearsal=4),
        concurrency=run.sizes(16, rehearsal=2),
        max_tokens=run.sizes(run.max_tokens, rehearsal=32),
        time_limit_s=GSM8K_LIMIT_S,
        folder=run.folder,
    )
    run.check(gsm8k.scored(found))
    if run.small:
        reason = f"{found.text} They are a few sums for a small model, and say nothing of {run.catalog.model.title}."
        run.leave_out("accuracy", title, expected=expected, reason=reason)
        return
    run.check(gsm8k.accuracy_check(found, figure, run.source(figure)) if figure else gsm8k.measured(found))
    if against:
        other = run.baseline(against)
        theirs = baseline.value(other, "accuracy") if other else None
        if other is None or theirs is None:
            expected = f"at most {points:g} points less than {against}"
            run.check(baseline.no_baseline("accuracy_baseline", f"{title} against the baseline", expected, against))
        else:
            names = baseline.names(other)
            run.check(gsm8k.against_baseline(found, theirs, points=points, made_by=names))


def needles(run: Run) -> None:
    """Hide a number in long texts, at several lengths and depths, and ask for it."""
    limit = run.max_model_len
    lengths = [n for n in run.sizes(TEXTS, rehearsal=SMALL_TEXTS) if limit is None or n < 0.95 * limit]
    with run.http() as http:
        found = measure.needles(
            http, run.model, lengths, run.sizes(DEPTHS, rehearsal=SMALL_DEPTHS), max_tokens=run.sizes(64, rehearsal=12)
        )
    for needle in found:
        said = needle.answer.strip()[:40]
        print(f"{needle.tokens:9,} tokens, {needle.where:7}: {needle.expected}, answered {said!r}")
    # The small model was trained on far shorter texts.
    share = run.sizes(1.0, rehearsal=0.5)
    run.check(feature_checks.needles_found("needles", "A number in a long text is found", found, share=share))


def beam(run: Run) -> None:
    """Ask the questions of BEAM-1M, where the parameter names a file of them."""
    name, title = "beam_1m", "BEAM-1M long-context benchmark"
    path = run.plan.parameters.beam_1m
    if not path:
        run.leave_out(name, title, expected="as the GPU reference", reason=NO_DATA)
        return
    with run.http() as http:
        found = measure.questions(http, run.model, Path(path), max_tokens=run.max_tokens)
    right = sum(needle.found for needle in found)
    reason = (
        f"{right} of {len(found)} replies contain the expected answer. No figure of the GPU reference is published, and"
        " a benchmark with a judge scores otherwise."
    )
    run.leave_out(name, title, expected="as the GPU reference", reason=reason)


def identical_after_a_hit(run: Run) -> None:
    """Send a prompt twice, and hold the answer out of the prefix cache against the first one, token by token."""
    ids = measure.prompt(run.sizes(8192, rehearsal=512), 11, run.run_id)
    with run.http() as http:
        cold = measure.logprobs(http, run.model, ids, max_tokens=16)
        before = run.metrics()
        hit = measure.logprobs(http, run.model, ids, max_tokens=16)
    name = "vllm:prefix_cache_hits_total"
    found = feature_checks.identical(
        "prefix_identical",
        "A prefix-cache hit changes no token and no log-probability",
        cold,
        hit,
        hits=run.metrics().get(name, 0.0) - before.get(name, 0.0),
        source=run.catalog.sources["spec"],
    )
    run.check(found)


# Tokens and bytes


def bytes_per_token(run: Run) -> None:
    """Hold the memory of the KV cache over its tokens against the arithmetic of its format."""
    if run.fleet is None:
        run.leave_out("bytes_per_token", "Bytes of a token", expected="by arithmetic", reason=NOT_LAUNCHED)
        return
    process = run.running.deployment.processes[0]
    kind = str(process.value("--kv-cache-dtype"))
    if run.rehearsal:
        layers, size = 30, 1 if kind.startswith("fp8") else 2
        workers = int(str(process.value("--tensor-parallel-size") or 1))
        expected = run.catalog.rehearsal.kv_elements_per_token * size / layers / workers
    else:
        shape = run.catalog.model.shape
        layers = shape.mla_layers
        expected = kv_bytes_per_token(shape, kind) / layers
    title = f"Bytes of a token and layer with the cache type {kind}"
    run.check(
        feature_checks.bytes_per_token(
            "bytes_per_token", title, run.log(process.role), expected=expected, layers=layers
        )
    )


def more_cache(run: Run, claim: str, title: str, ours: int | None, theirs: int | None) -> None:
    """Hold the tokens of two caches against the published ratio; in a rehearsal against that of the element sizes.

    Args:
        run: Of the page.
        claim: Name of the published ratio.
        title: Of the check.
        ours: Tokens with the feature.
        theirs: Tokens without it.
    """
    if not run.small or run.one_side:
        judging.judge(run, claim, title, feature_checks.times_as_many, ours, theirs)
        return
    figure = Claim(
        name=claim, statement=SMALL_BYTES, value=2, unit="times the tokens", tolerance=0.02, basis="chosen", source=""
    )
    source = Source(title="Arithmetic of the small model")
    run.check(feature_checks.times_as_many(claim, title, ours, theirs, claim=figure, source=source))


# What the log tells


def specialised_path(run: Run) -> None:
    """Check that decode steps take the path of low-latency decode, by the log."""
    judging.seen_in_log(
        run,
        "specialised_path",
        "Decode steps take the specialised path",
        r"specialized[ _]decode|latency[_ ]specialized|decode executor",
        expected="the specialised decode path is named",
        flag="--additional-config",
        source="vllm_latest_docs",
    )


def one_group(run: Run, title: str, pattern: str, *, expected: str) -> None:
    """Check that one tensor-parallel group spans the nodes, by the log; a rehearsal has two of one worker each.

    Args:
        run: Of the page.
        title: Of the check.
        pattern: Regular expression of the line on the hardware.
        expected: What that line says, for a reader.
    """
    judging.seen_in_log(
        run,
        "layout",
        title,
        run.sizes(pattern, rehearsal=r"in world size 2 is assigned .*TP rank 1"),
        expected=run.sizes(expected, rehearsal="world size 2, a rank on each node"),
    )


# Prefill/decode, offload, drafts, agents


def prefill_then_decode(run: Run) -> Mapping[str, tuple[int, ...]]:
    """Send a few requests, and count on both sides who read the prompts, who wrote the answers, and the transfers.

    Returns:
        The answers.
    """
    before = {role: run.metrics(role) for role in POOLS}
    found = answers(run)
    after = {role: run.metrics(role) for role in POOLS}
    prefill, decode = ((before[role], after[role]) for role in POOLS)
    run.check(feature_checks.kv_moved("nixl", "Cache pulled over NIXL", *decode, requests=len(found)))
    run.check(
        feature_checks.prefilled_elsewhere(
            "prefill_then_decode",
            "Prompts read by prefill, answers written by decode",
            prefill,
            decode,
            answer_tokens=sum(map(len, found.values())),
        )
    )
    return found


def same_as_alone(run: Run, ours: Mapping[str, tuple[int, ...]]) -> None:
    """Hold the answers of both pools against those of a server that reads the prompt and writes the answer itself.

    Args:
        run: Of the page.
        ours: Of `prefill_then_decode`.
    """
    with run.http("decode") as decode:
        alone = measure.answers(decode, run.model, max_tokens=_answer_tokens(run))
    run.check(
        feature_checks.same_tokens(
            "same_tokens",
            "Same tokens as one server alone",
            ours,
            alone,
            compared_with="the decode server asked directly, which then reads the prompt itself",
        )
    )


def without_prefill(run: Run) -> None:
    """Stop the prefill pool, and ask through the router: an error has to come, and no silence.

    Nothing works after it.
    """
    name, title, expected = "without_prefill", "Prefill pool down: an error, no silence", "an HTTP error"
    if run.fleet is None or run.plan.in_job:
        reason = "A Slurm job ends with the first of its steps that ends." if run.plan.in_job else NOT_LAUNCHED
        run.leave_out(name, title, expected=expected, reason=reason)
        return
    run.stop_role("prefill")
    with run.http() as http:
        status, said, seconds = measure.ask(http, run.model, "The capital of France is", max_tokens=8)
    print(f"HTTP {status} after {seconds:.1f} s: {said[:200]}")
    run.check(feature_checks.refused_clearly(name, title, status, said, seconds=seconds, limit_s=REFUSED_WITHIN_S))


def second_tier_gib(run: Run) -> float:
    """GiB that the second KV tier takes: memory in use on this machine, or the folder that stands for it here."""
    if run.rehearsal:
        files = (path for path in (run.folder / SECOND_TIER).rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files) / GIB
    return machine.used_memory() / GIB


def second_tier_grew(run: Run, before: float) -> None:
    """Check that the second tier takes the room that it should.

    Args:
        run: Of the page.
        before: Of `second_tier_gib`, before the servers were started.
    """
    name, title = "second_tier", "The second tier takes up room"
    if run.fleet is None:
        run.leave_out(name, title, expected="more memory in use", reason=NOT_LAUNCHED)
        return
    pinned = sum(offload_bytes_per_device(process) * process.devices for process in run.plan.own) / GIB
    at_least = run.sizes(0.9 * pinned, rehearsal=0.001)
    what = run.sizes("Memory in use on this machine", rehearsal="Files in the folder that stands for host memory")
    found = feature_checks.memory_grew(name, title, before, second_tier_gib(run), at_least=at_least, what=what)
    run.check(found)


def returning_sessions(run: Run, role: Role = "engine") -> None:
    """Open sessions, fill the device's cache until they are gone from it, and let them come back.

    Args:
        run: Of the page.
        role: Of the servers with the second tier.
    """
    held = run.kv_tokens()
    titles = {
        "kv_returned": "Prefixes come back from the second tier",
        "returning_faster": "A returning session is faster than a cold one",
    }
    if held is None:
        for name, title in titles.items():
            run.leave_out(name, title, expected="hits of the second tier", reason=NOT_LAUNCHED)
        return
    size, count = run.sizes(32_768, rehearsal=1024), run.sizes(8, rehearsal=3)
    opened = [measure.prompt(size, 100 + i, run.run_id) for i in range(count)]
    filler = [measure.prompt(size, 1000 + i, run.run_id) for i in range(1 + held // size)]
    with run.http(None if role == "engine" else role) as http:
        measure.first_tokens(http, run.model, [measure.prompt(size, 99, run.run_id)])  # Warm-up.
        cold = measure.first_tokens(http, run.model, opened)
        measure.first_tokens(http, run.model, filler)
        before = run.metrics(role)
        back = measure.first_tokens(http, run.model, opened)
    after = run.metrics(role)
    display(
        plots.bars(
            {"Cold": median(cold), "Coming back": median(back)},
            title=f"Time to first token of a session of {size:,} tokens",
            unit="s",
            note=f"Medians of {count} sessions. Between the two, {len(filler) * size:,} other tokens went through.",
        )
    )
    run.check(feature_checks.kv_came_back("kv_returned", titles["kv_returned"], before, after, tokens=size * count))
    run.check(feature_checks.returned_faster("returning_faster", titles["returning_faster"], cold, back))


def drafts(run: Run) -> None:
    """Ask questions of GSM8K as the draft's model card did, and count how many tokens of the draft were accepted.

    Without a file of GSM8K the questions are the small bundled ones, and no published figure is about them.
    """
    own = run.plan.parameters.gsm8k
    questions = gsm8k.read_questions(Path(own) if own else gsm8k.SMALL_QUESTIONS)[: run.sizes(200, rehearsal=4)]
    before = run.metrics()
    with run.http() as http:
        for question in questions:
            measure.sample(http, run.model, question["question"], max_tokens=run.sizes(512, rehearsal=32))
    after = run.metrics()
    title = f"Tokens that a step brings, with the draft ({'gsm8k' if own else 'bundled questions'})"
    if own and not run.small:
        judging.judge(run, "draft_acceptance", title, feature_checks.acceptance_length, before, after)
        return
    found = feature_checks.acceptance_length("draft_acceptance", title, before, after, claim=None, source=VLLM_METRICS)
    run.check(found)


def agents(run: Run) -> None:
    """Agent sessions at once, each of several turns, all with the same long prefix."""
    count = run.sizes(48, rehearsal=3)
    with run.http() as http:
        found = measure.sessions(
            http,
            run.model,
            count=count,
            turns=run.sizes(6, rehearsal=2),
            shared_tokens=run.sizes(16_384, rehearsal=256),
            turn_tokens=run.sizes(2048, rehearsal=32),
            answer_tokens=run.sizes(256, rehearsal=8),
            salt=run.run_id,
        )
    if found.done:
        display(run.picture("Time to first token by turn", {f"{count} sessions at once": run.keep(found.series)}))
    run.check(feature_checks.sessions_done("sessions", "Every turn of every session answered", found, count=count))
