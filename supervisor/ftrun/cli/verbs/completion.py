"""`ftctl completion`: the script for a shell.  It asks the programs themselves, so it never goes stale."""

from typing import Final

import click

PROGRAMS: Final = ("ftrun", "ftctl", "fthang")
WHERE: Final = """\b
bash  ~/.bashrc:                   source <(ftctl completion bash)
zsh   ~/.zshrc, after compinit:    source <(ftctl completion zsh)
fish  ~/.config/fish/config.fish:  ftctl completion fish | source
"""

BASH: Final = r"""
_ftrun_completion() {
    local -a words=() at=()
    local i word line=$COMP_LINE program=${1##*/} IFS=$'\n' type value
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $line == [[:blank:]]* ]]; then
            words+=("$word") at+=("$i")
        else
            words[-1]+=$word  # bash takes --probe=auto for three words
        fi
        line=${line#*"$word"}
    done
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
            command)
                i=${at[value]} IFS=$' \t\n'
                if declare -F _comp_command_offset > /dev/null; then
                    _comp_command_offset "$i"
                elif declare -F _command_offset > /dev/null; then
                    _command_offset "$i"
                elif ((COMP_CWORD == i)); then
                    compopt -o filenames
                    mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
                else
                    compopt -o default
                fi
                return ;;
        esac
    done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        "_${program^^}_COMPLETE=bash_complete" "$1" 2> /dev/null)
}
complete -o nosort -F _ftrun_completion @PROGRAMS@
"""

ZSH: Final = r"""#compdef @PROGRAMS@
_ftrun_completion() {
    local program=${words[1]:t} type value help
    local -a plain described lines
    lines=("${(@f)$(env COMP_WORDS="${(F)words[1,CURRENT]}" COMP_CWORD=$((CURRENT - 1)) \
        "_${(U)program}_COMPLETE=zsh_complete" ${(Q)words[1]} 2> /dev/null)}")
    [[ $words[CURRENT] == --*=* ]] && compset -P 1 '*='
    for type value help in "${lines[@]}"; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain) if [[ $help == _ ]]; then plain+=("$value"); else described+=("$value:$help"); fi ;;
            command)
                shift value words
                ((CURRENT -= value))
                _normal
                return ;;
        esac
    done
    (($#described)) && _describe -V unsorted described
    (($#plain)) && compadd -V unsorted -a plain
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _ftrun_completion "$@"
else
    compdef _ftrun_completion @PROGRAMS@
fi
"""

FISH: Final = r"""
function __ftrun_completion
    set -l tokens (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string upper -- (string replace -r '.*/' '' -- $tokens[1]))
    set -l words (string escape -- $tokens) $current
    set -l before (string match -r -- '^--[^=]*=' $current)
    set -l rest (string replace -- "$before" '' $current)
    for line in (env COMP_WORDS=(string join ' ' -- $words) COMP_CWORD=$current \
            _"$program"_COMPLETE=fish_complete $tokens[1] 2> /dev/null)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case dir
                string replace -r '^' -- "$before" (__fish_complete_directories $rest)
            case file
                string replace -r '^' -- "$before" (__fish_complete_path $rest)
            case plain
                printf '%s\n' "$before$parts[2]"
            case command
                set -l first (math $parts[2] + 1)
                complete -C (string join ' ' -- (string escape -- $tokens[$first..]) "$current")
        end
    end
end
for program in @PROGRAMS@
    complete --no-files --keep-order --command $program --arguments '(__ftrun_completion)'
end
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@click.command(
    help="Print what a shell needs to complete the words of ftrun, ftctl and fthang, or of PROGRAM alone.", epilog=WHERE
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
@click.argument("program", required=False, type=click.Choice(PROGRAMS))
def command(shell: str, program: str | None) -> None:
    click.echo(SCRIPTS[shell].replace("@PROGRAMS@", program or " ".join(PROGRAMS)).lstrip("\n"), nl=False)
