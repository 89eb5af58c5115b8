{{- define "fdl.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of object names: the release's name, with the chart's behind it when it does not contain it. */}}
{{- define "fdl.fullname" -}}
{{- $name := include "fdl.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fdl.labels" -}}
app.kubernetes.io/name: {{ include "fdl.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels that select the pods of one part: (dict "root" . "part" "operator") */}}
{{- define "fdl.selector" -}}
app.kubernetes.io/name: {{ include "fdl.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/* An image in full: (dict "root" . "image" "" "name" "operator") */}}
{{- define "fdl.image" -}}
{{- if .image -}}
{{- .image -}}
{{- else -}}
{{- printf "%s/%s:%s" .root.Values.image.registry .name .root.Values.image.tag -}}
{{- end -}}
{{- end -}}

{{- define "fdl.pullSecretNames" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets }}{{- $names = append $names .name -}}{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Trainer variants as the operator reads them: JSON with every image in full. */}}
{{- define "fdl.variants" -}}
{{- $root := . -}}
{{- $variants := list -}}
{{- range .Values.variants -}}
{{- $image := include "fdl.image" (dict "root" $root "image" .image "name" (printf "trainer-%s" .name)) -}}
{{- $variant := dict "name" .name "vendor" .vendor "image" $image -}}
{{- with .archs }}{{- $_ := set $variant "archs" . -}}{{- end -}}
{{- with .ncclVersion }}{{- $_ := set $variant "ncclVersion" . -}}{{- end -}}
{{- with .torchVersion }}{{- $_ := set $variant "torchVersion" . -}}{{- end -}}
{{- with .ncclBridge }}{{- $_ := set $variant "ncclBridge" . -}}{{- end -}}
{{- $variants = append $variants $variant -}}
{{- end -}}
{{- toJson $variants -}}
{{- end -}}

{{/* Security context of a container that needs nothing from its node: pod security level "restricted". */}}
{{- define "fdl.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
