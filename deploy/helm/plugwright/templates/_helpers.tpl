{{- define "plugwright.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "plugwright.selector" -}}
app.kubernetes.io/name: plugwright
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "plugwright.labels" -}}
{{ include "plugwright.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "plugwright.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "plugwright.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "plugwright.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* What `config` and `mock` ask for together. */}}
{{- define "plugwright.resources" -}}
{{- $resources := .Values.config.resources -}}
{{- with .Values.mock -}}
{{- if .enabled -}}
{{- $mock := dict "count" (int .count) "model" "Mock-A100" "memory" "40Gi" "numa" 2 -}}
{{- $resources = append $resources (dict "name" .resource "mock" $mock) -}}
{{- end -}}
{{- end -}}
{{- toJson $resources -}}
{{- end -}}

{{/* One entry for each DaemonSet: its name, and what is its own. Two on one node share no directory. */}}
{{- define "plugwright.instances" -}}
{{- $name := include "plugwright.fullname" . -}}
{{- $shared := pick .Values "nodeSelector" "affinity" "tolerations" "stateDir" "runDir" -}}
{{- $instances := list -}}
{{- with include "plugwright.resources" . | fromJsonArray -}}
{{- $own := dict "name" $name "component" "daemon" "config" (dict "resources" .) -}}
{{- $instances = append $instances (merge $own $shared) -}}
{{- end -}}
{{- range $key, $entry := .Values.configs -}}
{{- $own := dict "name" (printf "%s-%s" $name $key) "component" (printf "daemon-%s" $key) -}}
{{- range $directory := list "stateDir" "runDir" -}}
{{- with get $shared $directory -}}
{{- $_ := set $own $directory (printf "%s/%s" . $key) -}}
{{- end -}}
{{- end -}}
{{- range $setting := list "nodeSelector" "affinity" "tolerations" -}}
{{- $_ := set $own $setting (get (ternary $entry $shared (hasKey $entry $setting)) $setting) -}}
{{- end -}}
{{- $instances = append $instances (merge $own (pick $entry "config")) -}}
{{- end -}}
{{- if and .Values.plugin.target $instances -}}
{{- fail "plugin.target is served without config.resources, configs and mock" -}}
{{- end -}}
{{- if .Values.plugin.target -}}
{{- $own := dict "name" $name "component" "daemon" "config" (dict "resources" list) -}}
{{- $instances = append $instances (merge $own $shared) -}}
{{- end -}}
{{- if not $instances -}}
{{- fail "nothing to serve: set config.resources, configs, mock.enabled=true or plugin.target" -}}
{{- end -}}
{{- toJson $instances -}}
{{- end -}}

{{/* Whether a configuration shares GPUs by MPS: empty if not, or else "yes". */}}
{{- define "plugwright.mps" -}}
{{- $found := "" -}}
{{- range .resources -}}
{{- if eq (dig "nvidia" "share" "by" "" .) "mps" -}}
{{- $found = "yes" -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Daemons, plugin and tenants meet in directories of the node: the file and the chart must mean the same ones. */}}
{{- define "plugwright.mpsPlaces" -}}
{{- $mps := .root.Values.mps -}}
{{- range .config.resources -}}
{{- $own := dig "nvidia" "share" "mps" dict . -}}
{{- if eq (dig "nvidia" "share" "by" "" .) "mps" -}}
{{- $root := dig "root" "/run/plugwright/mps" $own -}}
{{- $shm := dig "shm" "/dev/shm/plugwright-mps" $own -}}
{{- if or (ne $root $mps.root) (ne $shm $mps.shm) -}}
{{- fail (printf "mps.root and mps.shm are %q and %q, but %s has share.mps.root %q and shm %q" $mps.root $mps.shm .name $root $shm) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a configuration serves NVIDIA GPUs: empty if not, or else "yes". */}}
{{- define "plugwright.nvidia" -}}
{{- $found := "" -}}
{{- range .resources -}}
{{- if hasKey . "nvidia" -}}
{{- $found = "yes" -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}
