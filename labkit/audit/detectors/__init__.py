"""The detectors, one a file: a module here is found by itself (see `labkit.audit.registry`).

    @detector("my-detector", 17, version=1, title="What it is called", explains=("another-detector",))
    def my_detector(evidence: Evidence) -> Iterator[Notice]:
        \"""What it judges by, and what fails and what only warns.\"""
        for one in evidence.observations:
            ...
            yield Notice(outcome="warn", text="one sentence", subject=one.subject, about=(one.subject,),
                         arithmetic=("17 / 16 = 1.06, of 1.05 at the most",))

Only what is physically impossible, or a harness that is broken, may fail; what rests on statistics fails at p < 1e-4 and
over 2 %. What lacks its data is "not assessable" and says what is missing. Where there is nothing to judge it says
nothing. The number is its place in the order; the version goes up when its judgement changes, and kept audits are then
made again. It comes with two tests from a real record, one that it catches and one that it lets pass.
"""
