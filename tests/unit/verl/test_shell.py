"""A script is read as the shell would run it, without running anything."""

import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.verl.shell.reader import Script, read_script

ANY_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def script(text: str, **environment: str) -> Script:
    return read_script(text, "run.sh", environment)


def words(text: str, **environment: str) -> list[str]:
    """Of the only command."""
    (command,) = script(text, **environment).commands
    return [field.text for field in command.words]


@given(st.lists(ANY_TEXT, min_size=1))
def test_quoted_words_come_back_as_they_were(texts: list[str]) -> None:
    assert words(shlex.join(["start", *texts])) == ["start", *texts]


@given(ANY_TEXT)
def test_what_a_variable_holds_comes_back_in_double_quotes(text: str) -> None:
    assert words(f'X={shlex.quote(text)}\nstart "$X" "a${{X}}b"') == ["start", text, f"a{text}b"]


@given(st.lists(ANY_TEXT, min_size=1))
@example(["\\\n", "a\\\nb", "\\\\\n"])
def test_an_array_keeps_its_elements(texts: list[str]) -> None:
    assert words(f'A=({shlex.join(texts)})\nstart "${{A[@]}}"') == ["start", *texts]


@given(st.text("ab$\"'`\\{}()[]<>;&|#=*?! \n-", max_size=30))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        script(text)
    except UserError as error:
        assert str(error).startswith("run.sh")


@as_subtests(
    ("written", "expected"),
    [
        ("$X", "ab"),
        ("${X}c", "abc"),
        ("${Y:-d}", "d"),
        ("${E:-d}", "d"),
        ("${E-d}", ""),
        ("${Y:-${X}/e}", "ab/e"),
        ('${Y:-"a b"}', "a b"),
        ("${Y:=f}$Y", "ff"),
        ("${X:+set}", "set"),
        ("${X:?must be given}", "ab"),
        ("${#X}", "2"),
        ("${U,,}", "abc"),
        ("${X^^}", "AB"),
        ("${P##*/}", "file.sh"),
        ("${P#*/}", "dir/file.sh"),
        ("${P%.sh}", "a/dir/file"),
        ("${P%%/*}", "a"),
        ("${P/dir/box}", "a/box/file.sh"),
        ("${P:2:3}", "dir"),
        ("$((2 * (3 + 4)))", "14"),
        ("$((N / 2))", "3"),
        ("$((-N / 2))", "-3"),
        ("$((N % 4 == 3 && N > 1))", "1"),
        ("$(basename $P .sh)", "file"),
        ('$(dirname "$P")', "a/dir"),
        ("`basename $P`", "file.sh"),
        ("$(false_command && echo x || echo y)", "y"),
        ("'$X'", "$X"),
        ('"\\$X"', "$X"),
        ("$HOME/data", "${oc.env:HOME}/data"),
        ('"$HOME"', "${oc.env:HOME}"),
    ],
)
def test_expansion(written: str, expected: str) -> None:
    assigned = "X=ab; E=; U=ABC; P=a/dir/file.sh; N=7"
    assert words(f'{assigned}\nR=x{written}\nstart "$R"') == ["start", f"x{expected}"]


def test_an_unquoted_variable_is_split_and_a_quoted_one_is_not() -> None:
    assert words('X="a b"\nstart $X "$X"') == ["start", "a", "b", "a b"]
    assert words('start ${X:-a b} ${X:-"a b"}') == ["start", "a", "b", "a b"]


def test_continued_lines_are_one_command_and_words_know_theirs() -> None:
    (command,) = script("start \\\n  a=1 \\\n  b=2 $@\n").commands
    assert [(field.text, field.line) for field in command.words] == [
        ("start", 1),
        ("a=1", 2),
        ("b=2", 3),
    ]


def test_elements_of_an_array_know_the_line_on_which_they_are_written() -> None:
    (command,) = script('A=(\n  a=1\n\n  # why\n  b=2\n)\nA+=(c=3)\nstart "${A[@]}"').commands
    assert [(field.text, field.line) for field in command.words[1:]] == [
        ("a=1", 2),
        ("b=2", 5),
        ("c=3", 7),
    ]


def test_a_comment_ends_a_continued_command() -> None:
    first, second = script("start a.x=1 \\\n  # a.y=2 \\\n  a.z=3\n").commands
    assert [field.text for field in first.words] == ["start", "a.x=1"]
    assert [(field.text, field.line) for field in second.words] == [("a.z=3", 3)]


@as_subtests(
    ("condition", "holds"),
    [
        ('[ "$A" = gpu ]', True),
        ('[ "$A" != gpu ]', False),
        ('[[ $A == g* && -n "$A" ]]', True),
        ('[ -z "$NOBODY" ]', True),
        ('[ "${NOBODY:-1}" != 0 ] && [ "${A:-x}" = gpu ]', True),
        ('[ "$N" -gt 1 ] || [ "$N" -lt -1 ]', True),
        ("(( N % 2 == 0 ))", False),
        ('! [ "$A" = npu ]', True),
        ("command -v something", False),
    ],
)
def test_the_branch_whose_condition_holds_is_read(condition: str, holds: bool) -> None:
    text = f"A=gpu\nN=3\nif {condition}; then X=yes\nelse\n X=no\nfi\nstart $X"
    assert words(text) == ["start", "yes" if holds else "no"]


def test_elif_and_case_choose_one_branch() -> None:
    text = """
    case "${DEVICE:-gpu}" in
      npu|cpu) X=other ;;
      gpu) X=this ;;
      *) X=none ;;
    esac
    if [ $X = that ]; then Y=1; elif [ $X = this ]; then Y=2; else Y=3; fi
    start $X $Y
    """
    assert words(text) == ["start", "this", "2"]
    assert words(text, DEVICE="cpu") == ["start", "other", "3"]


def test_the_environment_goes_before_defaults_and_not_before_assignments() -> None:
    assert words("A=${A:-1}\nB=2\nstart $A $B", A="8", B="9") == ["start", "8", "2"]


def test_here_documents_and_redirections_are_no_words() -> None:
    text = "cat <<'END' > file\nstart not=this\nEND\nstart a=1 2>&1 | tee log &\nwait\n"
    assert [[field.text for field in command.words] for command in script(text).commands] == [
        ["cat"],
        ["start", "a=1"],
        ["tee", "log"],
    ]


def test_what_only_running_could_tell_is_noted() -> None:
    found = script("X=run-$(date +%Y)\nstart $X $1\n")
    assert [field.text for field in found.commands[0].words] == ["start", "run-UNKNOWN", "UNKNOWN"]
    notes = {note.line: note.text for note in found.notes}
    assert "`$(date +%Y)` is not run" in notes[1]
    assert "`$1` is not given" in notes[2]


def test_defaults_that_were_taken_are_named() -> None:
    assert script("start ${A:-1} ${B:-2}", A="3").defaulted == ("B",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start 'a", "run.sh:1: `'` is not closed"),
        ('\nX="a', 'run.sh:2: `"` is not closed'),
        ("start ${X", "run.sh:1: `${` is not closed"),
        ("if true; then\nstart", "run.sh ends within a command"),
        ("start\nfi\n", "run.sh:2: `fi` is not expected here"),
        ("A=(1 2", "run.sh:1: `(` is not closed"),
    ],
)
def test_what_is_no_shell_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        script(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=3 b=4\nstart x=${x:-$(((a + b) * 2))}", ["start", "x=14"]),
        ('start f=${FILES:-["/a"]}', ["start", "f=[/a]"]),
        ('start "${LIST[@]}" \\\n    a=1 \\\n\n', ["start", "a=1"]),
        ("start a=1 \\\n", ["start", "a=1"]),
        ("start a=1 \\", ["start", "a=1"]),
        ("start a=\\ ", ["start", "a= "]),
    ],
)
def test_forms_on_which_grammars_fail_are_read(text: str, expected: list[str]) -> None:
    assert words(text if "LIST" not in text else f"LIST=()\n{text}") == expected


@as_subtests(
    ("text", "expected"),
    [
        ('A=(1 2 3 4)\nstart "${A[@]:1:2}" ${A[-1]} ${#A[@]} "${A[*]}"', "2|3|4|4|1 2 3 4"),
        ('A=(1 2)\nA[5]=x\nstart "${A[@]}" "${!A[@]}" ${A[5]}', "1|2|x|0|1|5|x"),
        ("i=1; A=(a b c)\nstart ${A[i+1]} ${A[$i]}", "c|b"),
        ("declare -A M=([a]=1 [b]=2)\nM[d]=4\nstart ${M[a]} ${M[d]} ${#M[@]}", "1|4|3"),
        ('A=("x y" z)\nstart ${A[@]} "${A[@]/#/p.}"', "x|y|z|p.x y|p.z"),
        ('A=()\nstart "${A[@]+"${A[@]}"}" a', "a"),
        ('A=(q "r s")\nstart "${A[@]+"${A[@]}"}"', "q|r s"),
        ('A=(x y); IFS=,\nstart "f=[${A[*]}]"', "f=[x,y]"),
        (
            "X=a/b.c\nstart ${X//\\//_} ${X//[.\\/]/-} ${X/%c/z} ${X/#a/z}",
            "a_b.c|a-b-c|a/b.z|z/b.c",
        ),
        ("X=abcdef\nstart ${X: -3} ${X:1:-2}", "def|bcd"),
        ('X=\nstart "${X:+no}" "${X+yes}"', "|yes"),
        ("V=X; X=7\nstart ${!V}", "7"),
        ("start $'a\\tit\\'s'", "a\tit's"),
        ("start a=1 `# why` b=2", "a=1|b=2"),
        ('start "$@" a=1 $*', "a=1"),
    ],
)
def test_arrays_and_changes_of_texts_are_those_of_bash(text: str, expected: str) -> None:
    """The words, with a bar between them, are those that bash 5.2 gives the command."""
    assert "|".join(words(text)[1:]) == expected


@as_subtests(
    ("text", "expected"),
    [
        ("f() {\n local lr=$1; shift\n start lr=$lr n=$# \"$@\"\n}\nf 1 'a b' c", "lr=1|n=2|a b|c"),
        ("a=out\nfunction f {\n local a=in\n}\nf\nstart $a", "out"),
        ("g() { b=$1-x; }\nf() { g $1; start $b $1; }\nf q", "q-x|q"),
        ("f() { [ $1 = x ] && return 1; start $1; }\nf x\nf y", "y"),
        ("f() { return $1; }\nf 1 || start no", "no"),
        ("i=1; ((i++)); ((i += 5)); let j=i*2 k=3\nstart $i $j $k", "7|14|3"),
        ("while [[ $# -gt 0 ]]; do X=bad; shift; done\nstart x=${X:-ok}", "x=ok"),
        ("n=5; until [ $n -eq 5 ]; do n=2; done\nstart $n", "5"),
        ("for ((i=3; i<4; i++)); do start $i; done", "3"),
        ('set -x\nset -- p q\nstart "$1" "$@"', "p|p|q"),
    ],
)
def test_functions_arithmetic_and_loops_are_those_of_bash(text: str, expected: str) -> None:
    assert "|".join(words(text)[1:]) == expected


def test_a_function_that_calls_itself_ends() -> None:
    assert words("f() { f; }\nf") == ["f"]


def test_a_variable_that_the_script_treats_as_optional_is_empty() -> None:
    name = 'start n=a${S:+"-"}${S}'
    assert words(name) == ["start", "n=a"]
    assert words(name, S="x") == ["start", "n=a-x"]
    assert words("start n=a${S}") == ["start", "n=a${oc.env:S}"]


START = "python3 -m verl.trainer.main_ppo data.train_batch_size=8"


def starts(text: str) -> list[list[str]]:
    """The words of every command that has veRL's module among them."""
    found = ([word.text for word in command.words] for command in script(text).commands)
    return [texts for texts in found if "verl.trainer.main_ppo" in texts]


@as_subtests(
    ("written", "expected"),
    [
        ("$[128]", "128"),
        ("$[$N * 8]", "32"),
        ("$[(N + 1) * 2]", "10"),
        ('"a$[1 + 1]b"', "a2b"),
        ("$(expr 3 + $N)", "7"),
        ("$(expr $UNSET_NUMBER + no)", "UNKNOWN"),
    ],
)
def test_older_arithmetic_is_computed(written: str, expected: str) -> None:
    assert words(f"N=4\nstart {written}") == ["start", expected]


def test_a_process_in_the_place_of_a_file_is_one_word() -> None:
    (start, log) = script(f"{START} 2>&1 | tee a.log >(tee b.log > /dev/null)").commands
    assert [word.text for word in start.words][-1] == "data.train_batch_size=8"
    assert [word.text for word in log.words] == ["tee", "a.log", ">(tee b.log > /dev/null)"]
    assert words('start "a >(b" c') == ["start", "a >(b", "c"]


@as_subtests(
    "written",
    [
        f'tmux send-keys -t train "{START}" C-m',
        f"nohup {START} > log 2>&1 &",
        f"srun --nodes=2 bash -c '{START}'",
        f'docker run --gpus all image bash -c "cd /w && {START}"',
        f"sbatch --wrap='{START}'",
        f'CMD="{START}"\neval "$CMD"',
        f"ray job submit --address=a -- {START}",
        f"if ! {START}; then exit 1; fi",
        f"until {START}; do sleep 60; done",
        f"exec > >(tee a.log) 2> >(tee b.log >&2)\nenv A=1 {START}",
    ],
)
def test_a_start_within_another_command_is_read(written: str) -> None:
    assert starts(written)[-1][-1] == "data.train_batch_size=8"


@as_subtests(
    "written",
    [f'echo "{START}"', f"cat > run.sh <<'EOF'\n{START}\nEOF", 'tmux send-keys "ls a=b" C-m'],
)
def test_a_text_that_is_only_shown_is_no_start(written: str) -> None:
    assert starts(written) == []


@as_subtests(
    ("header", "expected"),
    [
        ("for s in 1 2 3", ["1", "2", "3"]),
        ("for s in {4..6}", ["4", "5", "6"]),
        ("for s in $(seq 2 3)", ["2", "3"]),
        ("for s in $(seq 5 -2 1)", ["5", "3", "1"]),
        ("for s in x", ["x"]),
        ("for s in {1..6..2}", ["1", "3", "5"]),
        ("for s in {5..1..4}", ["5", "1"]),
        ("for s in {7,9}", ["7", "9"]),
        ("for ((s=0; s<2; ++s))", ["0", "1"]),
        ("for ((s=1; s<=5; s+=2))", ["1", "3", "5"]),
        ("for ((s=0; s<NUM; s++))", ["0"]),
        ("while read s", ["${oc.env:s}"]),
    ],
)
def test_a_loop_over_words_is_read_once_for_each(header: str, expected: list[str]) -> None:
    found = starts(f"{header}; do {START} data.seed=$s; done")
    assert [texts[-1] for texts in found] == [f"data.seed={value}" for value in expected]


@as_subtests("condition", ["while [ $s -lt 3 ]", "until ((s == 3))"])
def test_a_loop_that_counts_is_read_until_its_condition_ends_it(condition: str) -> None:
    found = starts(f"s=1; {condition}; do {START} data.seed=$s; ((++s)); done; start $s")
    assert [texts[-1] for texts in found] == ["data.seed=1", "data.seed=2"]


def test_break_and_continue_leave_a_loop() -> None:
    text = f"""for s in 1 2 3 4; do
  if [ $s = 2 ]; then continue; fi
  if [ $s = 4 ]; then break; fi
  {START} data.seed=$s
done"""
    assert [texts[-1] for texts in starts(text)] == ["data.seed=1", "data.seed=3"]


def test_a_sourced_file_of_the_repository_is_read_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    (tmp_path / "project" / "setup.py").touch()
    (tmp_path / "project" / "env.sh").write_text("N=7\nsource env.sh\nstart again")
    (tmp_path / "outside.sh").write_text("N=9")
    path = tmp_path / "project" / "scripts" / "run.sh"
    text = "[ -f env.sh ] && source env.sh\n. ../../outside.sh\nstart $N"
    found = read_script(text, str(path))
    assert [word.text for word in found.commands[-1].words] == ["start", "7"]
    assert {command.line for command in found.commands[:-1]} == {1}
    assert [note.line for note in found.notes if "outside" in note.text] == [2]


def test_a_script_of_the_repository_that_is_run_is_read_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    script = f"{START} data.seed=$1 optim.lr=${{LR:-1}}${{OWN:-}}$FOR_IT\nbash train.sh 9\nLR=8"
    (tmp_path / "train.sh").write_text(script)
    run = "for s in 1 2; do FOR_IT=$OWN bash train.sh $s; done"
    text = f"export LR=3\nOWN=4\n{run}\nbash ../train.sh 4\nstart $# $LR$OWN"
    found = read_script(text, str(tmp_path / "run.sh"))
    starts = [command for command in found.commands if command.words[0].text == "python3"]
    assert {command.words[-1].text for command in starts} == {"optim.lr=34"}
    assert [command.words[-2].text for command in starts] == ["data.seed=1", "data.seed=2"]
    assert {command.line for command in starts} == {3}
    assert [word.text for word in found.commands[-1].words] == ["start", "0", "34"]


@as_subtests(
    "command",
    [
        "nohup bash train.sh 9 > log 2>&1 &",
        "srun --nodes=2 bash -x train.sh 9",
        "./train.sh 9",
        "sbatch --nodes=2 train.sh 9",
        'docker run image bash -c "cd /w && bash train.sh 9"',
        'tmux send-keys "bash train.sh 9" Enter',
    ],
)
def test_another_script_is_read_however_it_is_run(command: str, tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "train.sh").write_text(f"{START} data.seed=$1")
    found = read_script(f"cp train.sh b.sh\n{command}", str(tmp_path / "run.sh"))
    starts = [command for command in found.commands if command.words[0].text == "python3"]
    assert [command.words[-1].text for command in starts] == ["data.seed=9"]
