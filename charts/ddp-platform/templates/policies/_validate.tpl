{{/* Values with which the policies would refuse the platform's own pods. */}}
{{- define "ddp-platform.validate.policies" -}}
{{- $action := include "ddp-platform.policy.action" (dict "root" . "rule" "imageDigest") -}}
{{- if and (eq $action "Deny") (or .Values.test.enabled .Values.prePull.enabled) (not .Values.image.digest) -}}
{{- fail "policies.imageDigest is Deny, and image.digest is empty, so the platform's own pods would be refused; set image.digest, or policies.imageDigest to Warn." -}}
{{- end -}}
{{- if and (eq $action "Deny") .Values.prePull.enabled -}}
{{- range .Values.prePull.images -}}
{{- if not (regexMatch "@sha256:[0-9a-f]{64}$" .) -}}
{{- fail (printf "policies.imageDigest is Deny, and prePull.images has '%s', which has no digest; write NAME@sha256:DIGEST, or set policies.imageDigest to Warn." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Rules that are not enforced, for NOTES.txt, except imageDigest, which is off by default. */}}
{{- define "ddp-platform.warnings.policies" -}}
{{- range $rule := list "hostPath" "hostNamespaces" "privileged" "memoryLimit" "apiToken" "networkPolicy" "workloadPatch" }}
{{- $action := include "ddp-platform.policy.action" (dict "root" $ "rule" $rule) }}
{{- if ne $action "Deny" }}
- nothing refuses objects that break the rule {{ $rule }} (policies.{{ $rule }}: {{ $action }}).
{{- end }}
{{- end }}
{{- end }}
