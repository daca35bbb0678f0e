"""The errors a person can meet: each says in one line what was wrong, with the value, and what to do."""


class LabError(Exception):
    """Base of every error labkit raises on purpose. Its text is one line a person can act on."""

    exit_code = 2  # what the command line ends with when this error reaches it


class DeviceError(LabError):
    """No usable Vulkan device, a missing feature, or a device that was lost."""


class OutOfDeviceMemory(DeviceError):
    """The device refused an allocation; the text says how much was asked for and what was free."""


class ShaderError(LabError):
    """A shader does not compile, or a kernel was given constants, addresses or a grid it cannot take."""


class ModelError(LabError):
    """A model file that is missing, damaged, or of an architecture or tensor type labkit does not run."""


class ParameterError(LabError):
    """A setting outside its range, of the wrong type, or unknown."""


class EngineError(LabError):
    """The engine cannot take the request: it is closed, full, or the prompt does not fit."""


class RunError(LabError):
    """A run that cannot start, or a record that cannot be read."""


class LedgerError(LabError):
    """A ledger event or ledger file that is damaged, missing or edited by hand."""
