# fish completion for kubectl-ddp
function __kubectl_ddp_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer (kubectl_complete-ddp $words[2..-1] 2>/dev/null)
    set -l directive (string replace -r '^:' '' -- $answer[-1])
    if test (math "bitand($directive, 8)") -ne 0
        __fish_complete_suffix .yaml
    else if test (count $answer) -gt 1
        printf '%s\n' $answer[1..-2]
    else if test (math "bitand($directive, 4)") -eq 0
        __fish_complete_path (commandline -ct)
    end
end
complete -c kubectl-ddp -f -a '(__kubectl_ddp_complete)'
