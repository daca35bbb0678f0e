"""The lab's rules as data: each with its reason, what enforces it, and which published rules it answers.

`lab docs` renders them into METHODOLOGY.md; a test fails where a rule names a detector, a function, a field, a test or a
verb that is not there. Adding a rule is adding an entry here.
"""

from dataclasses import dataclass
from typing import Literal

from labkit.errors import ParameterError

Kind = Literal["detector", "check", "field", "test", "verb", "person"]
GROUPS = ("Before measuring", "Measuring", "Conditions", "Judging", "Physics", "Writing", "Keeping")


@dataclass(frozen=True)
class Enforcer:
    """What enforces a rule: a detector by its id, a function that refuses or computes, a field of a schema, a test
    (`tests/file.py::name`), a verb of `lab`, or what a person has to do."""

    kind: Kind
    name: str


@dataclass(frozen=True)
class LabRule:
    """One rule: what holds, why in a sentence, what enforces it. `published`: the numbers of the 47 rules of NikoCloud's
    METHODOLOGY.md that it answers. ParameterError for one that nothing enforces."""

    id: str
    group: str
    rule: str
    why: str
    enforced: tuple[Enforcer, ...]
    published: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ParameterError(f"the rule {self.id} is in {self.group!r}, which is none of {', '.join(GROUPS)}")
        if not self.enforced:
            raise ParameterError(f"nothing enforces the rule {self.id}; name a person where nothing else does")
        for text in (self.rule, self.why):
            if not text.endswith(".") or "\n" in text or "|" in text:
                raise ParameterError(f"the rule {self.id} is not in sentences of one line: {text!r}")


RULES: dict[str, LabRule] = {}


def rule(
    id: str, group: str, text: str, why: str, *enforced: tuple[Kind, str], published: tuple[int, ...] = ()
) -> None:
    """Declares a rule. ParameterError for an id that is taken."""
    if id in RULES:
        raise ParameterError(f"the rule {id!r} is declared twice")
    RULES[id] = LabRule(id, group, text, why, tuple(Enforcer(*each) for each in enforced), published)


rule(
    "plan-first", "Before measuring",
    "A plan with its decision rule is stored, with its hash, before the first sample.",
    "A rule written after the data can be made to fit them; such an entry says that it is retrospective.",
    ("check", "labkit.lab.run.Run.plan"), ("field", "labkit.lab.record.RunRecord.retrospective"), published=(2,),
)  # fmt: skip
rule(
    "plan-kept", "Before measuring",
    "An edited plan is a deviation, listed with its time and the samples there were; the first plan judges.",
    "A threshold that moves with the numbers decides nothing.",
    ("check", "labkit.lab.deviations.deviation"), ("field", "labkit.lab.record.RunRecord.deviations"), published=(2,),
)  # fmt: skip
rule(
    "belief-can-fail", "Before measuring",
    "A plan states a belief in a sentence, one rule that decides it, and what would refute it.",
    "A belief that nothing could refute is not tested by anything.",
    ("field", "labkit.lab.plan.Plan.belief"), ("field", "labkit.lab.plan.Plan.rule"),
    ("field", "labkit.lab.plan.Plan.refuted_if"),
)  # fmt: skip
rule(
    "known-first", "Before measuring",
    "What is known of the question is looked up, and the reason for the belief is written into the plan.",
    "Most limits that a measurement finds were documented upstream.",
    ("field", "labkit.lab.plan.Plan.believed_because"), ("person", "searches, and says what was found"), published=(1,),
)  # fmt: skip
rule(
    "lever-acts", "Before measuring",
    "What is varied is a declared lever that acts at the measured workload; anything else is refused before it runs.",
    "A knob measured where it cannot act shows that it does nothing, and costs a night.",
    ("check", "labkit.lab.lever_checks.check_plan"), ("check", "labkit.lab.sweep.check_levers"),
)  # fmt: skip
rule(
    "negative-control", "Before measuring",
    "A lever that cannot act is measured only as a negative control, which must come out same, else the run is invalid.",
    "Where a thing that cannot matter makes a difference, the measurement is at fault.",
    ("field", "labkit.lab.plan.Plan.negative_control"), ("check", "labkit.lab.verdict.control_fault"),
)  # fmt: skip
rule(
    "metric-defined", "Before measuring",
    "Every number has a registered metric: one unit, one definition, one formula.",
    "Two rates of one name that count different tokens differ by a factor of five.",
    ("check", "labkit.measure.metrics.metric"), ("field", "labkit.lab.plan.Rule.metric"),
)  # fmt: skip
rule(
    "parameters-in-one-cell", "Before measuring",
    "An experiment's settings stand in one cell of literals, and the record keeps all of them, defaults included.",
    "A setting that hides in the code is not repeated by whoever repeats the run.",
    ("check", "labkit.lab.experiments.load_experiment"), ("field", "labkit.lab.record.RunRecord.parameters"),
    ("test", "tests/test_notebooks.py::test_a_notebook_is_committed_clean"),
)  # fmt: skip
rule(
    "right-before-fast", "Measuring",
    "A speed counts only in a run that checked its output, and where each check passed.",
    "A kernel that skips half of its work is fast.",
    ("check", "labkit.lab.run.Run.check"), ("check", "labkit.lab.verdict.gate_fault"), published=(19,),
)  # fmt: skip
rule(
    "not-degenerate", "Measuring",
    "The output behind a number of speculation or quality is held against what its kind of content looks like.",
    "A model that repeats itself is easy to draft for.",
    ("detector", "degenerate-output"), published=(19,),
)  # fmt: skip
rule(
    "complete-blocks", "Measuring",
    "Cells that are compared are measured in the same blocks, in a random order that is stored; two go A B B A.",
    "Machines drift, and all of A before all of B measures the drift.",
    ("check", "labkit.measure.statistics.block_order"), ("field", "labkit.lab.plan.Plan.seed"),
    ("test", "tests/measure/test_statistics.py::"
     "test_no_difference_is_called_one_in_at_most_7_of_100_sessions_even_under_drift"),
    published=(6,),
)  # fmt: skip
rule(
    "over-restarts", "Measuring",
    "A lever that needs a restart is compared over restarts, and a restart is one repetition.",
    "Samples of one start share its luck: memory placement, what was compiled.",
    ("check", "labkit.lab.lever_checks.check_design"), ("check", "labkit.lab.starts.start_fault"),
    ("field", "labkit.lab.plan.Plan.design"), ("check", "labkit.lab.effects.effects"),
    ("test", "tests/measure/test_verdict_rates.py::"
     "test_over_restarts_a_restart_is_one_repetition_since_its_samples_share_its_luck"),
)  # fmt: skip
rule(
    "warm-by-data", "Measuring",
    "Warming up happens at the measured shape and ends where the data settle, not after a fixed count.",
    "The first repetition at a new shape builds what later ones find built.",
    ("check", "labkit.lab.warming.warm_up"), ("field", "labkit.lab.plan.Plan.warmup"), ("detector", "repetitions"),
)  # fmt: skip
rule(
    "emitted-over-wall", "Measuring",
    "A throughput is token ids that came out over wall time, never one stream's rate times the batch.",
    "A rate that was multiplied by the batch already grows with its square.",
    ("check", "labkit.measure.timing.decode_window"), ("detector", "faster-than-solo"), ("detector", "littles-law"),
    published=(13,),
)  # fmt: skip
rule(
    "own-prompts", "Measuring",
    "No token of a timed prompt was found in a cache, unless its cell is declared warm; random prompts never begin alike.",
    "A prompt found in a cache is not read, and its rate is no rate.",
    ("check", "labkit.measure.bench.settings.Prompts.take"), ("detector", "shared-prefix"), published=(8, 26),
)  # fmt: skip
rule(
    "lengths-as-they-were", "Measuring",
    "Prompts, depths and outputs are counted in tokens as they were, and compared cells have the same.",
    "Sizes by words or characters miss by a factor of two; outputs that end early cost less.",
    ("detector", "nominal-lengths"), published=(14, 16),
)  # fmt: skip
rule(
    "all-resident", "Measuring",
    "Streams that are compared are all resident, or the number says that it is one of the queue.",
    "With more requests than places, throughput tells the places and latency tells the wait.",
    ("detector", "admission-waves"), published=(17,),
)  # fmt: skip
rule(
    "clocks-agree", "Measuring",
    "A client's rate is not above its server's; first tokens are timed as they arrive.",
    "Two clocks or two ways of counting make a gain that nobody else sees.",
    ("detector", "client-faster-than-server"), published=(12, 13),
)  # fmt: skip
rule(
    "server-is-ready", "Measuring",
    "A server is measured once it says that it is ready, on a port of its own.",
    "A server that still loads answers, and slowly; another's requests are in the numbers.",
    ("check", "labkit.runtimes.llama_server.LlamaServer"), published=(11, 23),
)  # fmt: skip
rule(
    "greedy-and-seeded", "Measuring",
    "Speed is measured with greedy decoding unless a plan says otherwise, and every seed is a parameter.",
    "Other tokens are other work, with speculation above all.",
    ("field", "labkit.engine.sampling.Sampling.temperature"), ("field", "labkit.lab.record.RunRecord.parameters"),
    published=(7,),
)  # fmt: skip
rule(
    "one-change", "Conditions",
    "Between compared cells nothing differs but what the plan names; a bundle is named as one, and bounds the claim.",
    "Of two changes nobody knows which one did it.",
    ("detector", "undeclared-changes"), ("check", "labkit.lab.differences.differences"), published=(5,),
)  # fmt: skip
rule(
    "as-the-driver-says", "Conditions",
    "Device, driver, clocks, limits of power, model header and types are read from what ran, not from what was configured.",
    "Settings are ignored, files are misnamed, and a cap in a file caps nothing.",
    ("field", "labkit.lab.record.RunRecord.device"), ("field", "labkit.lab.record.RunRecord.model"),
    ("field", "labkit.lab.record.RunRecord.program_fingerprints"), published=(3, 21, 34),
)  # fmt: skip
rule(
    "lever-witness", "Conditions",
    "What the lever moves has moved: a program's fingerprint, a counter, the workload, or a setting read back.",
    "A flag that is misspelt measures the default twice.",
    ("detector", "lever-witness"), published=(3, 20),
)  # fmt: skip
rule(
    "feature-consulted", "Conditions",
    "A feature that is said to be on was consulted; one consulted without effect is not credited.",
    "A drafter that never drafted cost nothing and gained nothing.",
    ("detector", "feature-consulted"), published=(20,),
)  # fmt: skip
rule(
    "one-timed-run", "Conditions",
    "One timed run at a time on a device: a lock that names its holder.",
    "Two runs that share a device measure each other.",
    ("check", "labkit.lab.lock.take_device"),
)  # fmt: skip
rule(
    "neighbours-seen", "Conditions",
    "Other programs on the device are looked for before, during and after, and named in the record.",
    "A job that came by halves a rate and leaves no trace in it.",
    ("field", "labkit.lab.record.RunRecord.neighbours"), ("detector", "another-process"), published=(25,),
)  # fmt: skip
rule(
    "machine-shared", "Conditions",
    "Runs of a sweep that went on at the same time on one machine are named, with those each went on beside.",
    "Each may have a GPU of its own, and yet they share the processor, the memory, the power and the air.",
    ("check", "labkit.lab.same_time.beside"), ("field", "labkit.lab.record.RunRecord.neighbours"),
)  # fmt: skip
rule(
    "nothing-held-back", "Conditions",
    "Throttling by heat or power, and memory spilled to the host, are seen and said.",
    "A device that is held back is another device.",
    ("detector", "throttled"), ("detector", "spilled-memory"),
)  # fmt: skip
rule(
    "watts-beside-rates", "Conditions",
    "Power is recorded beside the rate, from the device that ran, found by its PCI address.",
    "A card that idles under full load is the wrong card, or does not do what is said.",
    ("check", "labkit.measure.telemetry.find_source"), ("detector", "power-against-bandwidth"), published=(31, 32),
)  # fmt: skip
rule(
    "ratios-of-pairs", "Judging",
    "An effect is the geometric mean of ratios within blocks, with a 95 % interval that is never left out.",
    "Noise of times and rates is multiplicative, and a number without its interval says nothing of chance.",
    ("check", "labkit.measure.statistics.paired_ratios"), ("check", "labkit.measure.statistics.interval"),
    ("test", "tests/measure/test_statistics.py::test_the_interval_holds_the_true_ratio_as_often_as_it_says"),
)  # fmt: skip
rule(
    "four-outcomes", "Judging",
    "Confirmed, refuted, inconclusive or invalid: by the whole interval, and no data are neither of the first two.",
    "An absence of evidence is not evidence, in either direction.",
    ("check", "labkit.lab.verdict.decide"), ("field", "labkit.lab.verdict.Verdict.outcome"),
)  # fmt: skip
rule(
    "same-is-shown", "Judging",
    "Faster, slower and same are each shown by the whole interval; what shows none is undecided.",
    "A wide interval around 1 shows that little was measured, not that nothing changed.",
    ("check", "labkit.measure.statistics.comparison_word"),
    ("test", "tests/measure/test_verdict_rates.py::"
     "test_of_two_that_are_the_same_at_most_7_in_100_sessions_say_different_and_85_say_same"),
)  # fmt: skip
rule(
    "together-within-a-sweep", "Judging",
    "The cells of a sweep are judged by intervals that hold together.",
    "Among twenty comparisons of equals, one is different by chance.",
    ("check", "labkit.measure.statistics.family_level"), ("check", "labkit.lab.compare.against_control"),
    ("test", "tests/measure/test_verdict_rates.py::"
     "test_a_sweep_of_8_cells_that_are_all_the_same_finds_one_different_in_at_most_7_of_100"),
)  # fmt: skip
rule(
    "look-session-finding", "Judging",
    "Fewer than ten pairs are a look, ten a result of the session, three sessions of one scope a finding.",
    "A session shares a room, a boot and what the driver compiled.",
    ("check", "labkit.lab.verdict.strength_of"), ("field", "labkit.lab.verdict.Verdict.strength"),
)  # fmt: skip
rule(
    "all-runs-pooled", "Judging",
    "All valid runs of one scope are pooled, and every earlier attempt at a question is counted on its entry.",
    "Whoever repeats until it is confirmed succeeds, with nothing to find.",
    ("check", "labkit.lab.verdict.pool"), ("check", "labkit.lab.scope.scope_of"),
    ("check", "labkit.lab.attempts.attempts_before"),
)  # fmt: skip
rule(
    "anchor", "Judging",
    "Before and after an upgrade are compared beside a pinned kernel that lay where five earlier sessions say it would.",
    "Between two days more changed than the driver.",
    ("field", "labkit.lab.plan.Plan.anchor"), ("check", "labkit.lab.session_spread.check_anchor"),
    ("verb", "compare"), published=(6,),
)  # fmt: skip
rule(
    "sessions-apart", "Judging",
    "Two single sessions are compared by how far sessions of their scope lie apart: known from five, until then assumed to "
    "be 2 %, or what those there show where that is more.",
    "Nothing changed between two sessions of one scope, and still they differ.",
    ("check", "labkit.lab.session_spread.spread_of"), ("verb", "compare"),
    ("test", "tests/lab/test_compare.py::"
     "test_sessions_of_one_scope_show_no_difference_between_themselves_before_five_are_there"),
)  # fmt: skip
rule(
    "of-one-kind", "Judging",
    "A trend, two groups or an odd first repetition is told beside the verdict; no sample is dropped for it.",
    "Two modes have a mean that neither of them has.",
    ("detector", "repetitions"), ("check", "labkit.lab.verdict.warnings_of"),
)  # fmt: skip
rule(
    "ceiling", "Physics",
    "A rate is held against the device's limit for the unit that does the work, and so is the rate between two points.",
    "Above the ceiling something was not read, not counted or not done.",
    ("detector", "above-roofline"), ("check", "labkit.measure.roofline.read_bandwidth"), published=(18,),
)  # fmt: skip
rule(
    "streams-times-time", "Physics",
    "Throughput times the time a token takes is no more than the streams there were.",
    "Three numbers of one table are related, whatever the machine.",
    ("detector", "littles-law"),
)  # fmt: skip
rule(
    "no-gain-from-company", "Physics",
    "A stream is not faster in company than alone, and a step does not get shorter as its batch grows.",
    "The same weights are read for more rows.",
    ("detector", "faster-than-solo"),
)  # fmt: skip
rule(
    "times-are-never-twice", "Physics",
    "Raw times of different configurations differ.",
    "Equal digits mean a cache, a copied row, or a setting that was not applied.",
    ("detector", "identical-timings"),
)  # fmt: skip
rule(
    "fail-means-impossible", "Physics",
    "Only what is impossible, or a broken harness, fails; a fail withholds the finding until a person waives it with a reason.",
    "An audit that cries at noise is switched off.",
    ("check", "labkit.audit.stored.withheld_reason"), ("check", "labkit.lab.ledger.waive"), ("verb", "audit"),
    ("test", "tests/audit/test_false_alarms.py::test_no_detector_fails_an_honest_record_and_few_warn"),
)  # fmt: skip
rule(
    "unknown-stays-unknown", "Physics",
    "A published claim is judged by what its source says; what is missing is named, never guessed.",
    "A guessed condition turns an honest number into an impossible one, and the other way round.",
    ("check", "labkit.audit.claims.read_claims"), ("field", "labkit.audit.notice.Notice.missing"), ("verb", "claims audit"),
)  # fmt: skip
rule(
    "claims-follow", "Writing",
    "Each number in a sentence is one that the run's data give, and arithmetic in words comes out.",
    "A percentage is copied wrong more often than it is measured wrong.",
    ("check", "labkit.lab.claims.checked_claims"), ("detector", "text-arithmetic"),
)  # fmt: skip
rule(
    "can-and-should-not", "Writing",
    "Every entry ends with what can be claimed and what should not, by what was varied and what was not.",
    "One depth, one content and one card are not all of them; shallow and deep, code and prose differ.",
    ("detector", "single-shape"), ("check", "labkit.lab.coverage.coverage_of"),
    ("check", "labkit.lab.entry_text.should_not_claim"), published=(9, 10),
)  # fmt: skip
rule(
    "explanations-are-beliefs", "Writing",
    "Why something is so is a belief until it was measured on its own; an entry confirms its rule, not its reason.",
    "Most explanations that were written down untested were wrong.",
    ("field", "labkit.lab.plan.Plan.believed_because"), ("person", "gives an explanation an experiment of its own"),
    published=(39,),
)  # fmt: skip
rule(
    "struck-not-deleted", "Writing",
    "An entry that a later one of its scope contradicts is struck through and linked; nothing is deleted.",
    "The next person would believe it again, for the same good reason.",
    ("check", "labkit.lab.entries.fold_scope"), ("check", "labkit.lab.entry_text.fate"), published=(38,),
)  # fmt: skip
rule(
    "recomputed", "Writing",
    "Every number in the ledger is recomputed from the raw samples, each rule judged anew, and a hand-edited entry told.",
    "Text drifts from data.",
    ("check", "labkit.lab.recheck.verify"), ("verb", "ledger verify"), ("verb", "publish"),
)  # fmt: skip
rule(
    "raw-is-kept", "Keeping",
    "Every repetition and request is on the disk when the call that measured it returns, and outliers stay.",
    "Each large error of the published record was found in raw data that somebody had kept.",
    ("check", "labkit.lab.run.Run.measure"), ("check", "labkit.lab.run.Run.request"), published=(28,),
)  # fmt: skip
rule(
    "whole-or-marked", "Keeping",
    "A run appears whole or is marked partial; a killed one resumes with what it lacks, and nothing is overwritten.",
    "A result that a second run wrote over was nobody's.",
    ("check", "labkit.lab.folder.close_dead_runs"), ("check", "labkit.lab.run.Run.missing"),
    ("test", "tests/lab/test_ledger_concurrent.py::"
     "test_six_writers_killed_at_random_and_started_again_lose_no_entry_and_double_none"),
)  # fmt: skip
rule(
    "endings-are-told", "Keeping",
    "Every run ends in a state with a reason and an exit code; silence ends in one too.",
    "A monitor that is quiet looks like a run that is well.",
    ("field", "labkit.lab.record.RunRecord.state"), ("check", "labkit.lab.record.exit_code"), published=(30, 37),
)  # fmt: skip
rule(
    "fleet-once", "Keeping",
    "A point handed to another machine runs there once, with this lab's code; only this lab judges it and writes ledgers.",
    "What crashed one driver would crash every machine if it were repeated, and a ledger with two writers has two truths.",
    ("check", "labkit.lab.fleet.workplace.Workplace.perform"), ("check", "labkit.lab.fleet.delivery.receive"),
    ("test", "tests/lab/test_fleet.py::"
     "test_a_worker_that_is_killed_costs_its_point_which_nobody_repeats_until_resume"),
)  # fmt: skip
rule(
    "night-is-checked", "Keeping",
    "Before a night the disk, the mains and the neighbours are looked at.",
    "A night ends at the first full disk.",
    ("check", "labkit.lab.night.check_night"),
)  # fmt: skip
rule(
    "what-works-is-kept", "Keeping",
    "Runs that found nothing wrong are kept like those that did, and each knob's measured effect is a row of LEVERS.md.",
    "A record of failures alone misleads about what works.",
    ("check", "labkit.lab.run_effects.effects_of_run"), ("check", "labkit.lab.sweep_effects.effects_of"), published=(40,),
)  # fmt: skip
rule(
    "secrets-stay", "Keeping",
    "Secrets, names of people and machines, and home paths are taken out when captured, and again when shared.",
    "A record is made to be shown.",
    ("check", "labkit.lab.redact.Redactor"), ("verb", "export"),
)  # fmt: skip

# The published rules that no rule here answers: what each asks, and why it is not asked here.
AGENTS = "agents and their tasks are not measured here"
NOT_HERE: dict[int, tuple[str, str]] = {
    4: ("a way back is saved before settings are changed", "the lab changes no setting of a machine"),
    15: (
        "300 decoded tokens at the least",
        "a short window's interval says how little it tells, and its entry how long it was",
    ),
    22: ("patches prove that they applied, empty searches that they can find", "the lab patches no other program"),
    24: ("a server's own task ids against the requests sent", "an engine in the lab's own process serves nobody else"),
    27: ("named sessions for long work", "runs have ids and folders; sessions of a terminal are a person's"),
    29: ("results not in a file system of memory", "they lie in the lab's own folder, wherever that is"),
    33: ("means do not show transients", "telemetry is a mean over its interval, and no entry claims a peak"),
    35: ("line ends of scripts", "git normalises them"),
    36: ("no process is ended by a pattern", "the lab ends only those that it started, by their id"),
    41: ("failures of a harness apart from those of a model", AGENTS),
    42: ("an arm that does not set up is looked at from outside first", AGENTS),
    43: ("what is displayed is scored", AGENTS),
    44: ("detectors of text are tried on raw text", "the one that reads output is tested on both kinds"),
    45: ("an agent's reasoning is kept", AGENTS),
    46: ("no environment leaks from run to run", "a kernel inherits it; what acts on labkit is recorded"),
    47: ("the shell of a remote machine is matched", "the lab sends no commands to another machine"),
}
PUBLISHED = 47
