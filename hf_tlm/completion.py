"""What makes bash and zsh complete `hf-tlm`: its commands, their options, and presets where one is expected.

    eval "$(hf-tlm completion bash)"        # in ~/.bashrc; zsh in ~/.zshrc, after compinit

A command's options are asked of its --help when they are first completed in a shell, and then remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

# Option -> how the names of its presets begin; None: those of no other option.
_PRESETS = {"--model_config": "models/", "--config_file": "accelerate/", "--config": None}
_OPTIONS = r"hf-tlm {command} --help 2>/dev/null | grep -oE '^  (-h, )?--[a-z0-9_]+' | grep -oE -- '--[a-z0-9_]+'"

_BASH = r"""
_hf_tlm() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} names= at
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$word"))
  elif [[ $word == -* ]]; then
    local known=_hf_tlm_options_${command//[^a-z]/_}
    [[ -n ${!known} ]] || printf -v "$known" %s "$(@OPTIONS@)"
    COMPREPLY=($(compgen -W "${!known}" -- "$word"))
  else
    for ((at = COMP_CWORD - 1; at > 1; at--)); do [[ ${COMP_WORDS[at]} == -* ]] && break; done
    case ${COMP_WORDS[at]} in
@CASES@
    esac
    COMPREPLY=($(compgen -W "$names" -- "$word"))
    [[ -z $names ]] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o default -F _hf_tlm hf-tlm
"""
_ZSH = r"""
#compdef hf-tlm
_hf_tlm() {
  local at names=
  if ((CURRENT == 2)); then
    compadd -- @COMMANDS@ --help --version
  elif [[ $PREFIX == -* ]]; then
    typeset -gA _hf_tlm_options
    : ${_hf_tlm_options[$words[2]]:="$(@OPTIONS@)"}
    compadd -- ${(f)_hf_tlm_options[$words[2]]}
  else
    for ((at = CURRENT - 1; at > 2; at--)); do [[ $words[at] == -* ]] && break; done
    case $words[at] in
@CASES@
    esac
    [[ -z $names ]] || compadd -- ${=names}
    _files
  fi
}
if [[ $funcstack[1] == _hf_tlm ]]; then _hf_tlm "$@"; else compdef _hf_tlm hf-tlm; fi
"""
_SCRIPTS = {"bash": (_BASH, '"$command"'), "zsh": (_ZSH, "$words[2]")}
SHELLS = tuple(_SCRIPTS)


def completion(shell: str, commands: Sequence[str], presets: Sequence[str]) -> str:
    """The script for one of `SHELLS`.

    Args:
        commands: what the first word may be.
        presets: the names of all presets.
    """
    script, command = _SCRIPTS[shell]
    others = tuple(filter(None, _PRESETS.values()))
    cases = []
    for option, begins in _PRESETS.items():
        names = [name for name in presets if (name.startswith(begins) if begins else not name.startswith(others))]
        cases.append(f'      {option}) names="{" ".join(names)}" ;;')
    filled = {"COMMANDS": " ".join(commands), "OPTIONS": _OPTIONS.format(command=command), "CASES": "\n".join(cases)}
    for name, text in filled.items():
        script = script.replace(f"@{name}@", text)
    return script.strip()
