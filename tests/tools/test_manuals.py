"""Manual pages and completion say what ``--help`` says."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec

import pytest

from tools.manuals import PACKAGES, command_line, completion, man_page, write

needs_shtab = pytest.mark.skipif(not find_spec("shtab"), reason="shtab is in the publish extra")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_manual_page_names_every_subcommand_with_its_arguments(package):
    program = command_line(package)
    page = man_page(program)
    for name in program.commands:
        assert f"\n.SS {name}".replace("-", "\\-") in page.replace("-", "\\-").replace(
            "\\\\-", "\\-"
        )
    assert "\\-\\-json" in page
    assert page.startswith(f".TH {program.name.upper()} 1")
    assert "exit codes" in page or package == "firmware_sim"


def test_a_manual_page_shows_the_metavariable_and_the_help_of_an_option():
    assert ".B \\-\\-root\\-key FILE\nthe root's private key" in man_page(
        command_line("aggregator")
    )


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("package", PACKAGES)
def test_groff_formats_a_manual_page_without_a_warning(package):
    done = subprocess.run(
        ["groff", "-k", "-man", "-Tutf8", "-ww"],
        input=man_page(command_line(package)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@needs_shtab
@pytest.mark.parametrize("package", PACKAGES)
def test_completion_knows_every_subcommand(package):
    program = command_line(package)
    for shell in ("bash", "zsh"):
        script = completion(program, shell)
        assert all(name in script for name in program.commands)


@needs_shtab
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("gridfed-edge ba", {"backtest"}),
        ("gridfed-edge run --unt", {"--until-done"}),
        ("gridfed-edge run --log de", {"debug"}),
        ("gridfed-edge check met", {"meter.toml"}),
    ],
)
def test_bash_completes_subcommands_options_choices_and_files(words, answers, tmp_path):
    write("edge_sdk", tmp_path)
    (tmp_path / "meter.toml").touch()
    script = tmp_path / "share" / "bash-completion" / "completions" / "gridfed-edge"
    listed = words.split()
    driver = f"""
source {script}
COMP_WORDS=({words}); COMP_CWORD={len(listed) - 1}; COMP_LINE='{words}'; COMP_POINT={len(words)}
function=$(complete -p gridfed-edge | grep -o '[-]F [^ ]*' | cut -d' ' -f2)
$function gridfed-edge '{listed[-1]}' '{listed[-2]}' 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", driver],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert {line.strip() for line in done.stdout.split()} == answers, done.stderr
