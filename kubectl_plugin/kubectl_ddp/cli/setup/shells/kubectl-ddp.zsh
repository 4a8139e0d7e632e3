#compdef kubectl-ddp
# zsh completion for kubectl-ddp
_kubectl_ddp() {
    local answer line value directive
    local -a candidates
    answer=$(kubectl_complete-ddp "${(@)words[2,CURRENT]}" 2>/dev/null) || return
    directive=${answer##*:}
    for line in ${(f)answer}; do
        [[ $line == :* ]] && continue
        value=${line%%$'\t'*}
        if [[ $line == *$'\t'* ]]; then
            candidates+=("${value//:/\\:}:${line#*$'\t'}")
        else
            candidates+=("${value//:/\\:}")
        fi
    done
    if (( directive & 8 )); then
        _files -g '*.(yaml|yml|json)'
    elif (( ${#candidates} )); then
        _describe 'kubectl-ddp' candidates
    elif (( ! (directive & 4) )); then
        _files
    fi
}
compdef _kubectl_ddp kubectl-ddp
