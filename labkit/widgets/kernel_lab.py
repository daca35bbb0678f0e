"""`kernel_lab(kernel)`: a shader's text to edit, and at each run its errors, its correctness, its speed and its code."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError, ParameterError, ShaderError
from labkit.measure.roofline import kept_ceilings
from labkit.show.pieces import Html, mark, paragraph, share_words, table
from labkit.vulkan.compile import faults
from labkit.widgets.swapped import Swapped, defines_of, trials
from labkit.widgets.trial import Found, Trial, code_html, faults_html, of_bench
from labkit.widgets.view import View

if TYPE_CHECKING:
    from labkit.vulkan.device import Device
    from labkit.vulkan.kernel import Kernel

ISA_TARGET = "gfx1201"  # where this device's driver tells nothing of its code


class KernelLab(View):
    """A shader under the knife; see `kernel_lab`."""

    what = "kernel lab"

    def __init__(
        self, device: "Device", name: str, source: str, constants: dict[str, Any], subgroup: int,
        trial: "Callable[[Kernel], Trial] | None", shape: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.device, self.name, self.source = device, name, source
        self.op, _, self.variant = name.partition(".")
        self.constants, self.subgroup, self.trial, self.shape = constants, subgroup, trial, shape
        self.found: Found | None = None
        self.runs = 0
        self.doing = ""
        self._fields: dict[str, Any] = {}

    def run(self, source: str | None = None) -> "KernelLab":
        """Compile, check, time and read the code; `wait` waits for it. ParameterError while one is running."""
        if self.running:
            raise ParameterError("this kernel lab is at work already; stop it first")
        self.source = self.source if source is None else source
        self.begin(self._run)
        return self

    def _run(self) -> None:
        self.runs += 1
        found = self.found = Found(self.source)
        self._say("compiling")
        try:
            kernel, spirv = self._compile()
        except ShaderError as error:
            found.faults = faults(str(error), self.op)
            if not found.faults:
                raise
            return
        try:
            self._try(kernel, found)
            if not self._halt.is_set():
                self._say("reading its code")
                self._read_code(kernel, spirv, found)
        finally:
            kernel.close()
            self.doing = ""

    def _compile(self) -> "tuple[Kernel, bytes]":
        from labkit.vulkan.compile import compile_glsl
        from labkit.vulkan.kernel import Kernel

        spirv = compile_glsl(self.source, defines=defines_of(self.name), name=self.op)
        return Kernel(self.device, spirv, name=self.name, constants=self.constants, subgroup=self.subgroup), spirv

    def _say(self, text: str) -> None:
        self.doing = text
        self.changed(now=True)

    def _try(self, kernel: "Kernel", found: Found) -> None:
        """The trial of one's own, else the operations bench with this shader in its place."""
        self._say("checking against NumPy and timing")
        if self.trial is not None:
            found.trials.append(self.trial(kernel))
            return
        swapped = Swapped(self.device, self.op, self.source)
        try:
            for tried in trials(swapped, self.shape):
                found.trials.append(of_bench(tried))
                self.changed()
                if self._halt.is_set():
                    found.notes.append("stopped before the last case")
                    return
        finally:
            swapped.close()
        if not found.trials:
            found.notes.append(
                f"It compiles. No case of `lab bench ops` runs a shader {self.op!r} here, so it was neither checked nor timed: "
                f"give kernel_lab a trial=, a function of the kernel that returns a Trial."
            )

    def _read_code(self, kernel: "Kernel", spirv: bytes, found: Found) -> None:
        """What a compiler makes of it: this device's, else Mesa's for an AMD card that need not be here."""
        from labkit.vulkan.isa import statistics_of
        from labkit.vulkan.isa_cases import Case
        from labkit.vulkan.isa_null import compile_for
        from labkit.vulkan.recording import Wanted

        wanted = Wanted(self.op, self.variant, tuple(sorted(self.constants.items())), self.subgroup)
        case = Case(wanted, spirv)
        try:
            if self.device.has("executable_statistics"):
                found.code = statistics_of(self.device, [case])[0]
            else:
                found.code = compile_for(ISA_TARGET, [case])[0]
        except LabError as error:
            found.notes.append(f"Its code is not told: {error}")
            return
        if found.code.error:
            found.notes.append(f"Its code is not told: {found.code.error}")
            found.code = None

    def state(self) -> dict[str, Any]:
        """Faults by line, trials, and what the compiler said."""
        found = self.found
        code = found.code if found is not None else None
        return {
            "running": self.running, "error": self.error, "runs": self.runs, "kernel": self.name, "doing": self.doing,
            "faults": list(found.faults) if found else [], "notes": list(found.notes) if found else [],
            "trials": [{"label": t.label, "right": t.right, "error": t.error, "limit": t.limit, "seconds": t.seconds,
                        "gb_s": t.gb_s, "share_of_ceiling": self.share(t), "committed_s": t.committed_s}
                       for t in found.trials] if found else [],
            "code": {"target": code.target, **code.numbers, "spilled": code.spilled} if code else None,
        }  # fmt: skip

    def share(self, trial: Trial) -> float | None:
        """How near a trial came to the nearer ceiling, None where none was measured."""
        read, rates = kept_ceilings(self.device)
        if trial.seconds <= 0:
            return None
        least = [trial.nbytes / read.gb_s / 1e9] if read is not None else []
        least += [trial.flops / max(rate.tflop_s for rate in rates) / 1e12] if rates else []
        return max(least) / trial.seconds if least else None

    def html(self) -> Html:
        """What the last run found."""
        found = self.found
        if found is None:
            return paragraph(f"{self.name} on {self.device.name}: nothing was run yet.")
        doing = paragraph(self.doing) if self.doing else Html("")
        if found.faults:
            return Html(doing + paragraph(mark("failed"), f"{self.name} does not compile") + faults_html(found))
        rows = []
        for one in found.trials:
            near = self.share(one)
            against = f"{one.committed_s / one.seconds:.2f}×" if one.committed_s and one.seconds else ""
            outcome, sign = ("ok", "≤") if one.right else ("fail", ">")
            rows.append(
                (
                    one.label, mark(outcome), f"{one.error:.1e} {sign} {one.limit:.0e}",
                    f"{1e6 * one.seconds:.1f}" if one.seconds else "", f"{one.gb_s:.3g}" if one.gb_s else "",
                    share_words(near) if near is not None else "", against,
                )
            )  # fmt: skip
        head = ("case", "against NumPy", "error", "µs", "GB/s", "of the ceiling", "speed over the committed")
        parts = [doing]
        if rows:
            parts.append(table(head, rows, numbers=(2, 3, 4, 5, 6), title=f"{self.name} on {self.device.name}"))
            parts.append(paragraph(f"A look: medians of a few repetitions at small shapes. {self._ceiling()}"))
        parts += [paragraph(note) for note in found.notes]
        if found.code is not None:
            parts.append(code_html(found.code))
        return Html("".join(parts))

    def _ceiling(self) -> str:
        read, rates = kept_ceilings(self.device)
        if read is None and not rates:
            return "No ceiling of this device was measured yet."
        return "The ceiling is the nearer of reads and products, as measured on this device."

    def __repr__(self) -> str:
        found = self.found
        if found is None:
            return f"<kernel lab of {self.name}: nothing was run yet>"
        if found.faults or self.error:
            return f"<kernel lab of {self.name}: {self.error or f'line {found.faults[0][0]}: {found.faults[0][1]}'}>"
        right = sum(one.right for one in found.trials)
        return f"<kernel lab of {self.name}: {right} of {len(found.trials)} cases right>"

    def controls(self) -> Sequence[Any]:
        """The text, and two buttons."""
        import ipywidgets as widgets

        text = widgets.Textarea(self.source, layout=widgets.Layout(width="100%", height="24em"))
        text.add_class("labkit-code")
        style = widgets.HTML(
            "<style>.labkit-code textarea {font-family: var(--jp-code-font-family, monospace); white-space: pre; "
            "font-size: 13px; line-height: 1.35}</style>"
        )
        run = widgets.Button(description="Run", button_style="primary", icon="play")
        stop = widgets.Button(description="Stop", icon="stop", disabled=True)
        self._fields = {"text": text, "run": run, "stop": stop}
        run.on_click(lambda _: self.attempt(lambda: self.run(text.value)))
        stop.on_click(lambda _: self.attempt(self.stop))
        return style, text, widgets.HBox([run, stop])

    def follow_controls(self) -> None:
        """Run when at rest, Stop when at work."""
        if self._fields:
            self._fields["run"].disabled, self._fields["stop"].disabled = self.running, not self.running


def text_of(name: str) -> str:
    """The text of a kernel that the notebook made by `%%glsl NAME`: of its newest cell. ParameterError where none is."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    history = shell.history_manager if shell is not None else None
    cells = list(history.input_hist_raw) if history is not None else []
    for cell in reversed(cells):
        first, _, rest = cell.partition("\n")
        if re.match(rf"\s*%%glsl\s+{re.escape(name)}(\s|$)", first):
            return str(rest)
    raise ParameterError(f"no %%glsl cell of this notebook made {name!r}; give kernel_lab its text or a shader's name")


def kernel_lab(
    kernel: "Kernel | str",
    device: "Device | int | str | None" = None,
    *,
    constants: dict[str, Any] | None = None,
    trial: "Callable[[Kernel], Trial] | None" = None,
    shape: str = "",
) -> KernelLab:
    """A view to edit a compute shader in. Run compiles it (errors stand at their lines), checks the operation it is of
    against its NumPy reference, times it beside the committed shader, and reads what a compiler makes of it.

    `kernel`: a shader's name (`rms_norm`, or `linear.q8` for a variant), GLSL text, or a `Kernel` of a `%%glsl` cell.
    `trial`: a check of one's own, for a kernel that no operation runs. `shape`: the model whose shapes are taken. Without
    a browser: `view.run(text)`, `view.wait()`, `view.state()`. ParameterError or ShaderError for what is none of these."""
    from labkit.engine.engine import default_device
    from labkit.vulkan.compile import SUFFIX, shader_root
    from labkit.vulkan.device import Device
    from labkit.vulkan.kernel import Kernel

    if isinstance(kernel, Kernel):
        return KernelLab(
            kernel.device, kernel.name, text_of(kernel.name), dict(constants or kernel.constants), 0, trial, shape
        )
    if not isinstance(kernel, str):
        raise ParameterError(
            f"kernel_lab({kernel!r:.60}): give a shader's name, GLSL text, or a Kernel of a %%glsl cell"
        )
    on = device if isinstance(device, Device) else default_device(device)
    if "\n" in kernel or "void main" in kernel:
        return KernelLab(on, "kernel", kernel, dict(constants or {}), 0, trial, shape)
    path = shader_root() / f"{kernel.partition('.')[0]}{SUFFIX}"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in shader_root().glob(f"*{SUFFIX}")))
        raise ShaderError(f"there is no shader {kernel!r}; there are {known}")
    return KernelLab(on, kernel, path.read_text(encoding="utf-8"), dict(constants or {}), 0, trial, shape)


def main() -> None:
    """`python -m labkit.widgets.kernel_lab [SHADER]`: what a run of it finds, as a page on standard output."""
    import sys

    try:
        with kernel_lab(sys.argv[1] if sys.argv[1:] else "rms_norm") as view:
            view.run().wait()
            print(view.page(f"Kernel lab: {view.name}"))
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
