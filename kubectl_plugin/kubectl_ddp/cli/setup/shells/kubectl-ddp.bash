# bash completion for kubectl-ddp
_kubectl_ddp() {
    local answer directive line
    answer=$(kubectl_complete-ddp "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) || return
    directive=${answer##*:}
    COMPREPLY=()
    if ((directive & 8)); then
        compopt -o filenames
        while IFS= read -r line; do COMPREPLY+=("$line"); done \
            < <(compgen -f -X '!*.@(yaml|yml|json)' -- "${COMP_WORDS[COMP_CWORD]}"; compgen -d -- "${COMP_WORDS[COMP_CWORD]}")
        return
    fi
    while IFS= read -r line; do
        [[ $line == :* ]] || COMPREPLY+=("${line%%$'\t'*}")
    done <<<"$answer"
    if ((${#COMPREPLY[@]} == 0 && !(directive & 4))); then
        compopt -o default
    fi
}
complete -F _kubectl_ddp kubectl-ddp
