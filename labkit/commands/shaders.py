"""`lab shaders`: build the SPIR-V of shaders that changed, check it against its manifest, fetch the pinned compiler."""

import json as json_module

import click

from labkit.errors import ShaderError


@click.command(name="shaders")
@click.argument("ops", nargs=-1)
@click.option("--check", is_flag=True, help="Only compare sources, manifest and binaries; needs no compiler.")
@click.option("--rebuild", is_flag=True, help="Build every binary, also those that are up to date.")
@click.option("--fetch-compiler", is_flag=True, help="Fetch the pinned glslc with apt into the user's cache, once.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def command(ops: tuple[str, ...], check: bool, rebuild: bool, fetch_compiler: bool, as_json: bool) -> None:
    """Compile shaders/OPS.comp (all of them by default) whose source changed into shaders/spv/."""
    from labkit.vulkan import shader_build
    from labkit.vulkan.compile import shader_root

    if fetch_compiler:
        from labkit.vulkan.debian import fetch_compiler as fetch

        compiler = fetch(say=lambda line: click.echo(line, err=True))
        if as_json:
            click.echo(json_module.dumps({"compiler": compiler.version, "command": compiler.command}))
        else:
            click.echo(f"{compiler.version}: {' '.join(compiler.command)}")
        return
    if check:
        found = shader_build.problems()
        if as_json:
            click.echo(json_module.dumps({"problems": found}))
        if found:
            raise ShaderError(f"{'; '.join(found[:5])}{' ...' if len(found) > 5 else ''}: run `lab shaders`")
        if not as_json:
            click.echo(f"{len(shader_build.targets(shader_root()))} binaries agree with their sources")
        return
    built = shader_build.build(ops, rebuild=rebuild, say=lambda line: None if as_json else click.echo(line))
    if as_json:
        click.echo(json_module.dumps({"built": built}))
    elif not built:
        click.echo("nothing to do: every binary agrees with its source")
