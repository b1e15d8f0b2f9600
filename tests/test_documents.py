"""What the documents link to and name is there: files, headings, commands and their options, benchmarks and theirs, targets of make."""

import ast
import functools
import importlib
import re
import tomllib
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.documents import ROOT, Document, documents

PROGRAMS = {
    "manta-peer": "manta_swarm.peer.cli",
    "manta-aggregator": "manta_swarm.aggregator.cli",
    "manta-swarm": "manta_swarm.aggregator.local.cli",
    "manta-search": "manta_swarm.automl.cli",
}
SHARED_OPTIONS = "results.py"  # those of all benchmarks
OTHERS_OPTIONS = {"--build-arg", "--profile"}  # docker's
FOLDERS = "peer|aggregator|network|automl|runtime|codec|protocol|programs|tests|benchmarks|docs|deploy"

every_document = pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)


def group_of(program: str) -> click.Group:
    """Return a program's command, whose subcommands are the person's."""
    group = importlib.import_module(PROGRAMS[program]).main
    assert isinstance(group, click.Group)
    return group


def subcommands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from subcommands(below)


def groups(command: click.Command) -> Iterator[click.Group]:
    """Yield all of a program's commands that have commands below them."""
    yield from (each for each in subcommands(command) if isinstance(each, click.Group))


def complaints(program: str, words: list[str]) -> Iterator[str]:
    """Yield what the program's own parser has against a command line, as far as that can be said without its values."""
    command: click.Command = group_of(program)
    while isinstance(command, click.Group):
        if not words or words[0].isupper() or words[0].startswith("-"):  # a placeholder, or the program itself is meant
            words = [word for word in words if not word.isupper()]
            break
        names, words = words[0].split("|"), words[1:]
        context = click.Context(command)
        found = [command.get_command(context, name) for name in names]
        if None in found:
            yield f"{program} has no command {names[found.index(None)]}"
            return
        command = next(each for each in found if each is not None)
    try:
        command.make_parser(click.Context(command, help_option_names=["-h", "--help"])).parse_args(list(words))
    except click.UsageError as error:
        if not isinstance(error, click.BadOptionUsage) or error.option_name not in words[-1:]:  # a span may name an option alone
            yield error.format_message()


@functools.cache
def benchmark_options(name: str) -> frozenset[str]:
    """Return the options of a benchmark, read from its source: it need not be imported, nor what it measures."""
    files = [name] if name == SHARED_OPTIONS else [name, SHARED_OPTIONS]
    trees = [ast.parse((ROOT / "benchmarks" / file).read_text(encoding="utf-8")) for file in files]
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    added = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument")
    named = (argument.value for call in added for argument in call.args if isinstance(argument, ast.Constant))
    return frozenset({"-h", "--help"} | {name for name in named if isinstance(name, str) and name.startswith("-")})


@functools.cache
def all_options() -> frozenset[str]:
    """Return the options of all our programs and benchmarks."""
    parameters = (parameter for program in PROGRAMS for command in subcommands(group_of(program)) for parameter in command.params)
    programs = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    return frozenset(programs.union(*(benchmark_options(path.name) for path in (ROOT / "benchmarks").glob("*.py"))))


@every_document
def test_every_link_of_a_document_leads_somewhere(document: Document) -> None:
    """Files are there, headings are there; what is on other machines nobody asks here."""
    dangling = []
    for target in document.links():
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (document.path.parent / path).resolve() if path else document.path
        inside = linked.is_relative_to(ROOT) and linked.exists()
        if not inside or (anchor and linked.suffix == ".md" and anchor not in Document(linked).anchors()):
            dangling.append(target)
    assert not dangling


@every_document
def test_every_command_of_a_document_is_one_that_its_program_knows(document: Document) -> None:
    """Subcommands and options, by the parsers of the programs themselves."""
    wrong = [
        f"{program} {' '.join(words)}: {complaint}"
        for program, *words in document.commands("|".join(PROGRAMS))
        for complaint in complaints(program, words)
    ]
    assert not wrong


@every_document
def test_every_benchmark_of_a_document_is_there_and_has_the_options_named(document: Document) -> None:
    """The options are read from the source of the benchmark's parser of arguments."""
    wrong = []
    for path, *words in document.commands(r"benchmarks/\w+\.py"):
        name = path.removeprefix("benchmarks/")
        if not (ROOT / path).is_file():
            wrong.append(path)
        else:
            wrong += [f"{path} {word}" for word in words if word.startswith("--") and word not in benchmark_options(name)]
    assert not wrong


@every_document
def test_every_option_that_stands_alone_in_a_document_is_one_of_some_program(document: Document) -> None:
    """The program is one of Manta's, or a benchmark; an option of another program stands with that program's name."""
    named = {option for line in document.code() if line.startswith("-") for option in re.findall(r"(?<![\w-])--[a-z][\w-]*\w", line)}
    assert not named - all_options() - OTHERS_OPTIONS


@every_document
def test_every_file_of_the_project_that_a_document_names_is_there(document: Document) -> None:
    """Modules, tests, benchmarks, pages."""
    named = {
        match[0] for line in document.code() for match in re.finditer(rf"(?<![\w/.-])(?:{FOLDERS})/[\w/.-]*\w\.(?:py|md|json|svg)\b", line)
    }
    assert not sorted(name for name in named if not (ROOT / name).is_file())


@every_document
def test_every_folder_of_the_project_that_a_document_names_is_there(document: Document) -> None:
    """Packages and their parts: a path that begins with a package and ends with a slash."""
    named = {line for line in document.code() if re.fullmatch(rf"(?:{FOLDERS})(?:/\w+)*/", line)}
    assert not sorted(name for name in named if not (ROOT / name).is_dir())


def test_every_test_that_a_document_names_is_there() -> None:
    """A promise stands beside the test that tries to break it, with the file that has it."""
    named = []
    for document in documents():
        for row in document.text.splitlines():
            files = re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", row)
            tests = re.findall(r"`(test_\w+)`", row)
            texts = [path.read_text(encoding="utf-8") for file in files for path in (ROOT / "tests").rglob(file)]
            named += [(document.name, test, any(f"def {test}(" in text for text in texts)) for test in tests]
    assert len(named) > 20
    assert not [(name, test) for name, test, is_there in named if not is_there]


@every_document
def test_every_target_of_make_that_a_document_names_is_one_of_the_makefile(document: Document) -> None:
    """A document names targets in commands such as `make test`."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for _, *words in document.commands("make") for word in words if word.isalpha() and word.islower()}
    assert not named - targets


@every_document
def test_no_document_but_the_changelog_compares_with_the_very_release_that_it_is_of(document: Document) -> None:
    """A figure of another code names what is different there, not a version that ``--version`` shows too."""
    release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert document.name == "CHANGELOG.md" or f"version {release}" not in " ".join(document.text.split())


def test_every_page_can_be_reached_from_the_page_of_all_pages() -> None:
    """Nobody finds a page that nothing leads to."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in Document(index).links()}
    assert not {page.name for page in (ROOT / "docs").glob("*.md")} - {page.name for page in linked} - {index.name}


def test_the_pictures_are_well_formed_and_say_in_words_what_they_show() -> None:
    """An SVG that a parser refuses is shown by no browser; a reader of screens needs title and description."""
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        top = xml.etree.ElementTree.parse(picture).getroot()
        below = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in top}
        assert below.get("title"), picture.name
        assert below.get("desc"), picture.name


def test_the_modules_in_the_picture_of_the_architecture_are_there() -> None:
    """The picture is drawn by hand, and modules move."""
    drawn = re.findall(
        r"\b((?:peer|aggregator|network|automl|codec|protocol)(?:\.\w+)+)", (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    )
    assert len(drawn) > 10
    places = {name: ROOT / name.replace(".", "/") for name in drawn}
    assert not [name for name, place in places.items() if not place.with_suffix(".py").is_file() and not (place / "__init__.py").is_file()]


def test_a_document_is_taken_apart_as_a_reader_sees_it(tmp_path: Path) -> None:
    """Code is no prose, comments are no options, and a heading that comes twice has two anchors."""
    path = tmp_path / "page.md"
    path.write_text(
        "# One [two](x.md), `three`\n\n## Same\n\n## Same\n\nSee [it](a.md#b) and `[not](this.md)`.\n\n"
        "    A=$(cat file) .venv/bin/manta-peer join --run ID ... \\\n        --alone   # or --not\n\n"
        "```\n# no heading, [no](link.md)\nmanta-peer pause\n```\n\n`manta-peer:` and `manta-peer\nresume` and `manta-peerless x`.\n",
        encoding="utf-8",
    )
    page = Document(path)
    assert page.anchors() == {"one-two-three", "same", "same-1"}
    assert page.links() == ["x.md", "a.md#b"]
    assert list(page.commands("manta-peer")) == [
        ["manta-peer", "pause"],
        ["manta-peer", "join", "--run", "ID", "--alone"],
        ["manta-peer", "resume"],
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_list_of_commands_says_of_each_in_a_whole_sentence_what_it_does(program: str) -> None:
    """The first sentence of a command's help is so short that a terminal 80 columns wide shows all of it."""
    for group in groups(group_of(program)):
        context = click.Context(group, info_name=program, terminal_width=80, max_content_width=80)
        listed = group.get_help(context).partition("\nCommands:\n")[2].splitlines()
        assert listed
        assert [line for line in listed if line.endswith("...") or not line.endswith(".")] == []


@pytest.mark.parametrize("line", ["jion", "join --rum ID", "join --alone=yes", "ledger verify", "pause --all"])
def test_a_command_that_the_program_does_not_know_is_complained_of(line: str) -> None:
    """Without a complaint here the tests above would pass whatever a document says."""
    assert list(complaints("manta-peer", line.split()))
