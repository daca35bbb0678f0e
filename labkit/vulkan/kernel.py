"""A compute pipeline with named specialisation constants and push constants, checked before the driver sees them."""

import operator
import struct
from typing import TYPE_CHECKING, Any

from labkit.errors import ParameterError, ShaderError
from labkit.vulkan import raw
from labkit.vulkan.memory import Buffer, Range
from labkit.vulkan.reflect import reflect

if TYPE_CHECKING:
    from labkit.vulkan.device import Device

Grid = int | tuple[int, ...]


class Kernel:
    """A shader made ready to dispatch.

    `source` is SPIR-V (bytes) or GLSL text (compiled with `labkit.vulkan.compile`). `constants` sets specialisation
    constants by name; `subgroup` asks for a subgroup size where the driver lets one choose. Raises ShaderError in one
    line for a constant that does not exist, too much shared memory, or a workgroup over the device's limits.
    """

    create_flags = 0  # VkPipelineCreateFlags

    def __init__(
        self,
        device: "Device",
        source: bytes | str,
        *,
        name: str = "kernel",
        constants: dict[str, int | float | bool] | None = None,
        subgroup: int = 0,
    ) -> None:
        if isinstance(source, str):
            from labkit.vulkan.compile import compile_glsl

            source = compile_glsl(source, name=name)
        device.alive()
        self.device, self.name, self.constants = device, name, dict(constants or {})
        self.interface = reflect(source, name)
        self._special = self._specialise()
        integers = {key: word for key, (_, word) in self._special.items()}
        self.interface = reflect(source, name, integers)
        self._check_limits()
        self._members = {m.name: m for m in self.interface.push}
        self._closed = False
        self._build(source, subgroup)
        device.keep(self)

    def _specialise(self) -> dict[str, tuple[int, int]]:
        """Every named constant's id and 32-bit word, given or default."""
        known = self.interface.constants
        for key in self.constants:
            if key not in known:
                raise ShaderError(
                    f"{self.name} has no specialisation constant {key!r}; it has {', '.join(known) or 'none'}"
                )
        words = {}
        for key, (ident, code, default) in known.items():
            value = self.constants.get(key)
            try:
                if key not in self.constants:
                    word = default
                elif code == "f":
                    word = struct.unpack("<I", struct.pack("<f", value))[0]
                else:
                    word = struct.unpack("<I", struct.pack("<i" if operator.index(value) < 0 else "<I", value))[0]  # type: ignore[arg-type]
            except (struct.error, TypeError, OverflowError):
                kind = "number" if code == "f" else "32-bit whole number"
                raise ShaderError(f"{self.name}: the constant {key}={value!r} is not a {kind}") from None
            words[key] = ident, word
        return words

    def _check_limits(self) -> None:
        info, face = self.device.info, self.interface
        x, y, z = face.local_size
        if x * y * z > info.max_workgroup_invocations or any(
            not 1 <= have <= most for have, most in zip(face.local_size, info.max_workgroup_size, strict=True)
        ):
            raise ShaderError(
                f"{self.name}: a workgroup of {x}x{y}x{z} is over what {info.name} runs "
                f"({info.max_workgroup_invocations})"
            )
        if face.shared_bytes > info.max_shared_bytes:
            raise ShaderError(
                f"{self.name} wants {face.shared_bytes} bytes of shared memory; {info.name} has {info.max_shared_bytes}"
            )
        if face.push_bytes > info.max_push_bytes:
            raise ShaderError(
                f"{self.name} wants {face.push_bytes} bytes of push constants; {info.name} takes {info.max_push_bytes}"
            )

    def _build(self, spirv: bytes, subgroup: int) -> None:
        s, device = raw.Structs(), self.device
        code = s.new("char[]", spirv)
        info = s.struct(
            "ShaderModuleCreateInfo", "SHADER_MODULE_CREATE_INFO",
            codeSize=len(spirv), pCode=s.ffi.cast("uint32_t *", code),
        )  # fmt: skip
        module = s.new("VkShaderModule *")
        raw.check(s.lib.vkCreateShaderModule(device.handle, info, s.ffi.NULL, module), f"loading {self.name}")
        entries, data = [], b""
        for ident, word in self._special.values():
            entries.append((ident, len(data), 4))
            data += struct.pack("<I", word)
        special = None
        if entries:
            special = s.struct(
                "SpecializationInfo", mapEntryCount=len(entries),
                pMapEntries=s.new("VkSpecializationMapEntry[]", entries),
                dataSize=len(data), pData=s.new("char[]", data),
            )  # fmt: skip
        stage = s.struct(
            "PipelineShaderStageCreateInfo", "PIPELINE_SHADER_STAGE_CREATE_INFO",
            stage=0x20, module=module[0], pName="main", pSpecializationInfo=special,
        )  # fmt: skip
        if subgroup and device.has("subgroup_size_control"):
            if not device.info.subgroup_min <= subgroup <= device.info.subgroup_max:
                raise ShaderError(
                    f"{self.name} asks for subgroups of {subgroup}; {device.name} has "
                    f"{device.info.subgroup_min} to {device.info.subgroup_max}"
                )
            required = s.struct(
                "PipelineShaderStageRequiredSubgroupSizeCreateInfo",
                "PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO", requiredSubgroupSize=subgroup,
            )  # fmt: skip
            stage.pNext = s.ffi.cast("void *", required)
        push = s.new("VkPushConstantRange[]", [(0x20, 0, max(4, self.interface.push_bytes))])
        layout_info = s.struct(
            "PipelineLayoutCreateInfo", "PIPELINE_LAYOUT_CREATE_INFO",
            pushConstantRangeCount=1 if self.interface.push_bytes else 0, pPushConstantRanges=push,
        )  # fmt: skip
        layout = s.new("VkPipelineLayout *")
        raw.check(s.lib.vkCreatePipelineLayout(device.handle, layout_info, s.ffi.NULL, layout), f"building {self.name}")
        create = s.struct(
            "ComputePipelineCreateInfo", "COMPUTE_PIPELINE_CREATE_INFO",
            flags=self.create_flags, stage=stage[0], layout=layout[0],
        )  # fmt: skip
        pipeline = s.new("VkPipeline *")
        result = s.lib.vkCreateComputePipelines(device.handle, device.pipeline_cache, 1, create, s.ffi.NULL, pipeline)
        s.lib.vkDestroyShaderModule(device.handle, module[0], s.ffi.NULL)
        if result < 0:
            s.lib.vkDestroyPipelineLayout(device.handle, layout[0], s.ffi.NULL)
        raw.check(result, f"building the pipeline of {self.name}")
        self.layout, self.pipeline = layout[0], pipeline[0]

    def pack(self, push: dict[str, Any]) -> bytes:
        """The push-constant bytes for named values (buffers and ranges become addresses). Raises ParameterError."""
        missing = [m for m in self._members if m not in push]
        unknown = [k for k in push if k not in self._members]
        if missing or unknown:
            wrong = f"lacks {', '.join(missing)}" if missing else f"does not know {', '.join(unknown)}"
            raise ParameterError(f"{self.name} {wrong}; it takes {', '.join(self._members) or 'nothing'}")
        out = bytearray(self.interface.push_bytes)
        for key, member in self._members.items():
            value = push[key]
            if isinstance(value, Buffer | Range):
                buffer = value if isinstance(value, Buffer) else value.buffer
                buffer.alive()
                if buffer.block.device is not self.device:
                    raise ParameterError(
                        f"{self.name}: {key} is a buffer of another Device than the kernel's; use one for both"
                    )
                value = buffer.address if isinstance(value, Buffer) else value.start
            values = value if isinstance(value, tuple | list) else (value,)
            try:
                struct.pack_into("<" + member.format, out, member.offset, *values)
            except struct.error as error:
                raise ParameterError(
                    f"{self.name}: {key}={push[key]!r} does not fit {member.format!r} ({error})"
                ) from None
        return bytes(out)

    def plain(self, packed: bytes) -> bytes:
        """Packed push constants with the addresses blanked: what stays the same from process to process."""
        out = bytearray(packed)
        for member in self._members.values():
            if "Q" in member.format:
                out[member.offset : member.offset + 8 * len(member.format)] = bytes(8 * len(member.format))
        return bytes(out)

    def grid(self, grid: Grid) -> tuple[int, int, int]:
        """The grid as three counts of workgroups, checked against the device. Raises ParameterError."""
        sizes = tuple(int(n) for n in grid) if isinstance(grid, tuple | list) else (int(grid),)
        x, y, z = (*sizes, 1, 1)[:3]
        if len(sizes) > 3 or any(
            n <= 0 or n > most for n, most in zip((x, y, z), self.device.info.max_grid, strict=True)
        ):
            raise ParameterError(f"{self.name}: a grid of {grid} is outside 1 to {self.device.info.max_grid}")
        return x, y, z

    def run(self, grid: Grid, **push: Any) -> float:
        """Dispatch once, wait, and return the GPU seconds. For exploring; programs are for work that repeats."""
        program = self.device.program(self.name)
        buffers = [v for v in push.values() if isinstance(v, Buffer | Range)]
        program.dispatch(self, grid, push, reads=buffers, writes=buffers)
        program.submit().wait()
        seconds = program.gpu_seconds()
        program.close()
        return seconds

    def close(self) -> None:
        """Free the pipeline. Closing twice, or after the device, is fine."""
        if not self._closed:
            self._closed = True
            if self.device.handle is None or self.device.hung:
                return
            self.device.lib.vkDestroyPipeline(self.device.handle, self.pipeline, self.device.ffi.NULL)
            self.device.lib.vkDestroyPipelineLayout(self.device.handle, self.layout, self.device.ffi.NULL)

    def __repr__(self) -> str:
        constants = ", ".join(f"{k}={v}" for k, v in self.constants.items())
        return f"<Kernel {self.name}({constants}) workgroup {self.interface.local_size}>"

    def _repr_html_(self) -> str:
        from labkit.show.kernel import kernel_html

        return kernel_html(self)
