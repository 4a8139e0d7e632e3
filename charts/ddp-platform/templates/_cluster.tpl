{{/*
Checks against the cluster. They run at install and upgrade alone: `helm template` has no cluster, and `lookup` finds
nothing there.
*/}}
{{- define "ddp-platform.validate.cluster" -}}
{{- include "ddp-platform.validate.only" . -}}
{{- include "ddp-platform.validate.existing" . -}}
{{- end }}

{{/* One platform per cluster, because its cluster-scoped objects have fixed names. */}}
{{- define "ddp-platform.validate.only" -}}
{{- $release := printf "%s/%s" .Release.Namespace .Release.Name -}}
{{- range tuple
  (list "v1" "Namespace")
  (list "rbac.authorization.k8s.io/v1" "ClusterRole")
  (list "scheduling.k8s.io/v1" "PriorityClass")
  (list "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy") -}}
{{- range (lookup (first .) (last .) "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") $.Chart.Name) (hasKey $annotations "meta.helm.sh/release-name") (ne $owner $release) (ne (get $annotations "helm.sh/resource-policy") "keep") (not (hasKey .metadata "deletionTimestamp")) -}}
{{- fail (printf "The cluster has a platform already: the release '%s' in the namespace '%s' created the %s '%s'. Upgrade that release, or uninstall it first: helm uninstall %s --namespace %s" (get $annotations "meta.helm.sh/release-name") (get $annotations "meta.helm.sh/release-namespace") .kind .metadata.name (get $annotations "meta.helm.sh/release-name") (get $annotations "meta.helm.sh/release-namespace")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Namespaces that exist already, are missing, or enforce a stricter Pod Security level than their values have. */}}
{{- define "ddp-platform.validate.existing" -}}
{{- $levels := dict "privileged" 0 "baseline" 1 "restricted" 2 -}}
{{- $isConnected := lookup "v1" "Namespace" "" "kube-system" -}}
{{- range (include "ddp-platform.namespaces" . | fromYaml).items -}}
{{- $found := lookup "v1" "Namespace" "" .name -}}
{{- $annotations := dig "metadata" "annotations" dict ($found | default dict) -}}
{{- $isOurs := and (eq (get $annotations "meta.helm.sh/release-name") $.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $.Release.Namespace) -}}
{{- if and $found .create (not $isOurs) -}}
{{- fail (printf "namespaces: '%s' exists and does not belong to this release; set its create to false, or choose another name." .name) -}}
{{- end -}}
{{- if and $isConnected (not $found) (not .create) -}}
{{- fail (printf "namespaces: '%s' has create: false, and the cluster has no such namespace; create it first, or set create to true." .name) -}}
{{- end -}}
{{- $enforced := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "privileged" ($found | default dict) -}}
{{- if and $found (not .create) (gt (get $levels $enforced) (get $levels .podSecurity)) -}}
{{- fail (printf "namespaces: '%s' needs Pod Security level %s%s, and the existing namespace enforces %s; ask its owner to label it: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=%s" .name .podSecurity (ternary " for RDMA" "" .rdma) $enforced .name .podSecurity) -}}
{{- end -}}
{{- end -}}
{{- end }}
