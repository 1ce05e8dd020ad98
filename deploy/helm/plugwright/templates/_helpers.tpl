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
{{- with .root.Values.imageRegistry }}{{ . }}/{{ end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The image that the daemons of a configuration run: with extras only if one of its families needs them. */}}
{{- define "plugwright.daemonImage" -}}
{{- $values := .root.Values -}}
{{- $families := (include "plugwright.families" .root | fromJson).families -}}
{{- $extras := false -}}
{{- range .config.resources -}}
{{- range $key := keys . -}}
{{- $extras = or $extras (dig $key "extras" list $families) -}}
{{- end -}}
{{- end -}}
{{- toJson (ternary $values.toolsImage $values.image (and (not $values.plugin.target) (not (empty $extras)))) -}}
{{- end -}}

{{/* The device families, as `make chart` generates them from the code. */}}
{{- define "plugwright.families" -}}
{{- .Files.Get "families.json" -}}
{{- end -}}

{{/* The name of something in the cluster that belongs to a release: two namespaces may have releases of one name. */}}
{{- define "plugwright.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "plugwright.fullname" .) -}}
{{- end -}}

{{- define "plugwright.priorityClass" -}}
{{- with .Values.priorityClass -}}
{{- .name | default (ternary (include "plugwright.clusterName" $) "" .create) -}}
{{- end -}}
{{- end -}}

{{/* Asks the daemon on its socket whether it serves, and waits for a yes there: by the least of Python that there is.
     As the startup probe it ends well in any case: a daemon that has to wait must not be restarted. */}}
{{- define "plugwright.ready" -}}
import _socket, sys, time
end = time.monotonic() + 55
while True:
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.settimeout(58)
    try:
        asking.connect("/run/plugwright/control.sock")
        asking.sendall(b'{"do": "ready", "wait": %d}\n' % max(1, end - time.monotonic()))
        answer = asking.recv(4096)
        break
    except OSError as error:
        answer = str(error).encode()
    if time.monotonic() > end:
        break
    time.sleep(0.1)
sys.stdout.write(answer.decode())
sys.exit({{ ternary "0" "not answer.startswith(b'{\"ok\"')" (eq . "startup") }})
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
{{- /* A pod of its own reads the control socket. */ -}}
{{- if and .Values.events.enabled (not .Values.runDir) -}}
{{- $_ := set $shared "runDir" (printf "/run/plugwright/%s" (include "plugwright.clusterName" .)) -}}
{{- end -}}
{{- $release := printf "%s/%s" .Release.Namespace .Release.Name -}}
{{- include "plugwright.checkPools" . -}}
{{- $instances := list -}}
{{- with include "plugwright.resources" . | fromJsonArray -}}
{{- $config := merge (dict "resources" .) (omit $.Values.config "resources") -}}
{{- $own := dict "name" $name "component" "daemon" "path" "config" "config" $config "release" $release -}}
{{- $_ := set $own "affinity" (include "plugwright.otherNodes" $ | fromJson) -}}
{{- $instances = append $instances (merge $own $shared) -}}
{{- end -}}
{{- range $key, $entry := .Values.configs -}}
{{- $own := dict "name" (printf "%s-%s" $name $key) "component" (printf "daemon-%s" $key) -}}
{{- $_ := set $own "path" (printf "configs.%s.config" $key) -}}
{{- $_ := set $own "release" (printf "%s/%s" $release $key) -}}
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
{{- $own := dict "name" $name "component" "daemon" "path" "config" "config" (dict "resources" list) "release" $release -}}
{{- if ne .Values.plugin.serve "device-plugin" -}}
{{- if not .Values.plugin.resources -}}
{{- fail (printf "plugin.serve: %s needs plugin.resources, whose drivers get rights" .Values.plugin.serve) -}}
{{- end -}}
{{- end -}}
{{- $instances = append $instances (merge $own $shared) -}}
{{- end -}}
{{- if not $instances -}}
{{- fail "nothing to serve: set config.resources, configs, mock.enabled=true or plugin.target" -}}
{{- end -}}
{{- $table := include "plugwright.families" . | fromJson -}}
{{- range $instances -}}
{{- include "plugwright.check" (merge (dict "table" $table) .) -}}
{{- end -}}
{{- toJson $instances -}}
{{- end -}}

{{/* The affinity of the daemons of `config`: that of the values, without the nodes of `configs`. */}}
{{- define "plugwright.otherNodes" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $excluded := list dict -}}
{{- range $key, $entry := .Values.configs -}}
{{- $selector := get (ternary $entry $.Values (hasKey $entry "nodeSelector")) "nodeSelector" | default dict -}}
{{- $own := dict -}}
{{- range $label, $value := $selector -}}
{{- if ne (toString (get $.Values.nodeSelector $label | default "")) (toString $value) -}}
{{- $_ := set $own $label $value -}}
{{- end -}}
{{- end -}}
{{- /* A node is outside of a pool if one of the pool's labels differs: a term for each of them. */ -}}
{{- $terms := list -}}
{{- range $before := $excluded -}}
{{- range $label, $value := $own -}}
{{- $values := append (get $before $label | default list) (toString $value) -}}
{{- $terms = append $terms (merge (dict $label ($values | uniq)) $before) -}}
{{- end -}}
{{- end -}}
{{- $excluded = $terms | default $excluded -}}
{{- end -}}
{{- if ne (toJson $excluded) "[{}]" -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $combined := list -}}
{{- range $term := $required.nodeSelectorTerms | default (list dict) -}}
{{- range $labels := $excluded -}}
{{- $expressions := $term.matchExpressions | default list -}}
{{- range $label := keys $labels | sortAlpha -}}
{{- $expressions = append $expressions (dict "key" $label "operator" "NotIn" "values" (get $labels $label)) -}}
{{- end -}}
{{- $combined = append $combined (merge (dict "matchExpressions" $expressions) (omit $term "matchExpressions")) -}}
{{- end -}}
{{- end -}}
{{- $node = merge (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $combined)) (omit $node "requiredDuringSchedulingIgnoredDuringExecution") -}}
{{- $affinity = merge (dict "nodeAffinity" $node) (omit $affinity "nodeAffinity") -}}
{{- end -}}
{{- toJson $affinity -}}
{{- end -}}

{{/* Refuses pools that share nodes, as far as their selectors show it. */}}
{{- define "plugwright.checkPools" -}}
{{- $selectors := dict -}}
{{- $general := list -}}
{{- range include "plugwright.resources" . | fromJsonArray -}}
{{- $general = append $general .name -}}
{{- end -}}
{{- range $key, $entry := .Values.configs -}}
{{- $selector := get (ternary $entry $.Values (hasKey $entry "nodeSelector")) "nodeSelector" | default dict -}}
{{- $affinity := get (ternary $entry $.Values (hasKey $entry "affinity")) "affinity" | default dict -}}
{{- $own := false -}}
{{- range $label, $value := $selector -}}
{{- $own = or $own (ne (toString (get $.Values.nodeSelector $label | default "")) (toString $value)) -}}
{{- end -}}
{{- range ternary list $entry.config.resources (or $own (not (empty $affinity))) -}}
{{- if has .name $general -}}
{{- fail (printf "configs.%s serves %s as config does, and must have a nodeSelector that tells its nodes from those of config" $key .name) -}}
{{- end -}}
{{- end -}}
{{- range $other, $labels := $selectors -}}
{{- $apart := not (and (empty $affinity) (empty $labels.affinity)) -}}
{{- range $label, $value := $selector -}}
{{- $apart = or $apart (and (hasKey $labels.selector $label) (ne (toString (get $labels.selector $label)) (toString $value))) -}}
{{- end -}}
{{- $names := list -}}
{{- range $labels.resources -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $entry.config.resources -}}
{{- if and (not $apart) (has .name $names) -}}
{{- fail (printf "configs.%s and configs.%s may run on one node and both serve %s: give both nodeSelectors a label with different values" $other $key .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $selectors $key (dict "selector" $selector "affinity" $affinity "resources" $entry.config.resources) -}}
{{- end -}}
{{- end -}}

{{/* Refuses what the daemon would refuse, in its words, as far as it can be seen without knowing the devices. */}}
{{- define "plugwright.check" -}}
{{- $path := .path -}}
{{- $families := .table.families -}}
{{- $kinds := keys $families | sortAlpha -}}
{{- $options := .table.options -}}
{{- $names := list -}}
{{- range $index, $resource := .config.resources -}}
{{- $at := printf "%s.resources[%d]" $path $index -}}
{{- $found := list -}}
{{- $others := list -}}
{{- range $key, $value := omit $resource "name" "serve" -}}
{{- if and (has $key $kinds) (not (kindIs "invalid" $value)) -}}
{{- $found = append $found $key -}}
{{- else if not (has $key (concat $kinds $options)) -}}
{{- $others = append $others $key -}}
{{- end -}}
{{- end -}}
{{- if gt (len $found) 1 -}}
{{- fail (printf "%s: a resource must have one kind of device, got %s" $at (join " and " $found)) -}}
{{- else if not (concat $found $others) -}}
{{- fail (printf "%s: a resource must have one kind of device, got none; one of: %s" $at (join ", " $kinds)) -}}
{{- end -}}
{{- if has $resource.name $names -}}
{{- fail (printf "%s.name: %s is already a resource" $at $resource.name) -}}
{{- end -}}
{{- $names = append $names $resource.name -}}
{{- $example := $resource.name -}}
{{- range $found -}}
{{- range $placeholder, $value := (get $families .).placeholders -}}
{{- $example = $example | replace (printf "{%s}" $placeholder) $value -}}
{{- end -}}
{{- end -}}
{{- with include "plugwright.brokenRule" $example -}}
{{- fail (printf "%s.name: '%s' is not a resource name: it %s" $at $example .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The rule of resource names that a name breaks; empty if none. */}}
{{- define "plugwright.brokenRule" -}}
{{- $parts := splitList "/" . -}}
{{- $domain := first $parts -}}
{{- if ne (len $parts) 2 -}}
must have one '/', as in example.com/fpga
{{- else if or (contains "kubernetes.io/" .) (hasPrefix "requests." $domain) -}}
must not use kubernetes.io or 'requests.', which are Kubernetes' own
{{- else if or (gt (len $domain) 244) (not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" $domain)) -}}
must have a lower-case DNS name of at most 244 characters before the '/'
{{- else if not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" (last $parts)) -}}
must have 1 to 63 letters, digits, '-', '_' or '.' after the '/', a letter or digit first and last
{{- end -}}
{{- end -}}

{{/* The directories of the node that a configuration needs in the pod, and those that the values name. Each family
     declares its own in families.json; plugwright/sdk/host_mounts.py documents the fields and evaluates them too. */}}
{{- define "plugwright.hostPaths" -}}
{{- $values := .root.Values -}}
{{- $table := include "plugwright.families" .root | fromJson -}}
{{- $host := .config.host | default dict -}}
{{- $root := $host.root | default "/" | clean | trimSuffix "/" -}}
{{- $mounts := dict -}}
{{- range $resource := .config.resources -}}
{{- $settings := merge (dict "host" $host) $resource -}}
{{- range $key, $family := $table.families -}}
{{- range ternary list $family.mounts (kindIs "invalid" (index $resource $key)) -}}
{{- $arguments := dict "mount" . "settings" $settings "root" $root "runtimeClass" $values.runtimeClassName -}}
{{- range include "plugwright.mounted" $arguments | fromJsonArray -}}
{{- if has .mountPath $table.takenDirectories -}}
{{- fail (printf "%s: %s cannot be mounted at its own path in the daemon's pod: set config.host.root, for example to /host" $resource.name .mountPath) -}}
{{- end -}}
{{- $_ := set $mounts .mountPath . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if include "plugwright.claims" . | fromJsonArray -}}
{{- $cdi := $host.cdi | default "/var/run/cdi" -}}
{{- $_ := set $mounts $cdi (dict "path" $cdi "mountPath" $cdi "readOnly" false) -}}
{{- end -}}
{{- range $values.hostPaths -}}
{{- $_ := unset $mounts (.mountPath | default .path) -}}
{{- end -}}
{{- $sorted := list -}}
{{- range $mountPath := keys $mounts | sortAlpha -}}
{{- $mount := get $mounts $mountPath -}}
{{- $type := ternary "Directory" "DirectoryOrCreate" (has $mount.path $table.systemDirectories) -}}
{{- $sorted = append $sorted (merge (dict "type" $type) $mount) -}}
{{- end -}}
{{- toJson (concat $sorted $values.hostPaths) -}}
{{- end -}}

{{/* The directories that one declared mount stands for; none if a condition does not hold. */}}
{{- define "plugwright.mounted" -}}
{{- $mount := .mount -}}
{{- $settings := .settings -}}
{{- $wanted := not (and $mount.unlessRuntimeClass .runtimeClass) -}}
{{- range $mount.when -}}
{{- $condition := . -}}
{{- $matches := empty .oneOf -}}
{{- $values := include "plugwright.settingValues" (dict "source" .value "settings" $settings) | fromJsonArray -}}
{{- range $values | default (list "") -}}
{{- $matches = or $matches (has . ($condition.oneOf | default list)) -}}
{{- $wanted = and $wanted (not (has . ($condition.noneOf | default list))) -}}
{{- end -}}
{{- $wanted = and $wanted $matches -}}
{{- end -}}
{{- $found := list -}}
{{- range ternary (include "plugwright.settingValues" (dict "source" $mount.path "settings" $settings) | fromJsonArray) list $wanted -}}
{{- $path := . -}}
{{- $covered := false -}}
{{- range $mount.unlessBelow -}}
{{- $covered = or $covered (eq $path .) (hasPrefix (printf "%s/" .) $path) -}}
{{- end -}}
{{- if not $covered -}}
{{- $at := ternary (printf "%s%s" $.root $path) $path (eq $mount.belowRoot true) -}}
{{- with $mount.at -}}
{{- $at = include "plugwright.settingValues" (dict "source" . "settings" $settings) | fromJsonArray | first -}}
{{- end -}}
{{- $entry := dict "path" $path "mountPath" $at "readOnly" (ne $mount.written true) -}}
{{- if $mount.mounts -}}
{{- $_ := set $entry "mountPropagation" "HostToContainer" -}}
{{- end -}}
{{- $found = append $found $entry -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* A fixed path, or the values of the first of several settings that is set, or its default. */}}
{{- define "plugwright.settingValues" -}}
{{- $source := .source -}}
{{- $values := list -}}
{{- if kindIs "string" $source -}}
{{- $values = list $source -}}
{{- else -}}
{{- $found := list -}}
{{- range $source.settings -}}
{{- if not $found -}}
{{- $found = include "plugwright.lookup" (dict "value" $.settings "keys" (splitList "." .)) | fromJsonArray -}}
{{- end -}}
{{- end -}}
{{- if and (not $found) $source.default -}}
{{- $found = list $source.default -}}
{{- end -}}
{{- range $found -}}
{{- $part := clean . -}}
{{- if eq ($source.part | default "whole") "before-wildcard" -}}
{{- $part = include "plugwright.directoryBeforeWildcard" . -}}
{{- else if eq ($source.part | default "whole") "parent" -}}
{{- $part = dir . -}}
{{- end -}}
{{- $values = append $values (printf "%s%s" $part ($source.suffix | default "")) -}}
{{- end -}}
{{- end -}}
{{- toJson $values -}}
{{- end -}}

{{/* The values of a setting, as strings: lists are flattened, and a string stands for the struct that it abbreviates. */}}
{{- define "plugwright.lookup" -}}
{{- $keys := .keys -}}
{{- $found := list -}}
{{- if kindIs "slice" .value -}}
{{- range .value -}}
{{- $found = concat $found (include "plugwright.lookup" (dict "value" . "keys" $keys) | fromJsonArray) -}}
{{- end -}}
{{- else if kindIs "map" .value -}}
{{- if $keys -}}
{{- $found = include "plugwright.lookup" (dict "value" (get .value (first $keys)) "keys" (rest $keys)) | fromJsonArray -}}
{{- end -}}
{{- else if not (or (kindIs "invalid" .value) (eq (toString .value) "")) -}}
{{- $found = list (toString .value) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The directory named before the first wildcard of a path, or the path's own; /dev for everything below it. */}}
{{- define "plugwright.directoryBeforeWildcard" -}}
{{- if regexMatch "^/dev/." . -}}
/dev
{{- else -}}
{{- $plain := list -}}
{{- $fixed := true -}}
{{- range initial (splitList "/" (trimPrefix "/" (clean .))) -}}
{{- $fixed = and $fixed (not (regexMatch "[*?\\[]" .)) -}}
{{- if $fixed -}}
{{- $plain = append $plain . -}}
{{- end -}}
{{- end -}}
/{{ join "/" $plain }}
{{- end -}}
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

{{/* Whether the MPS pods of a configuration are privileged: as mps.privileged says, or if one of them sets compute modes. */}}
{{- define "plugwright.mpsPrivileged" -}}
{{- $privileged := .root.Values.mps.privileged -}}
{{- if kindIs "string" $privileged -}}
{{- $privileged = false -}}
{{- range .config.resources -}}
{{- if eq (dig "nvidia" "share" "mps" "mode" "leave" .) "exclusive" -}}
{{- $privileged = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $privileged -}}
{{- end -}}

{{/* The seccomp profile of the daemons and of MPS. */}}
{{- define "plugwright.seccompProfile" -}}
{{- $profile := .Values.security.seccompProfile -}}
{{- if hasPrefix "localhost/" $profile -}}
type: Localhost
localhostProfile: {{ trimPrefix "localhost/" $profile }}
{{- else -}}
type: {{ $profile }}
{{- end -}}
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

{{/* The API through which a resource is offered: device-plugin, dra or both. */}}
{{- define "plugwright.api" -}}
{{- if kindIs "map" .serve -}}
{{- .serve.api -}}
{{- else -}}
{{- .serve | default "device-plugin" -}}
{{- end -}}
{{- end -}}

{{/* A name with the letters that DNS allows, and a digest of what it was: as in plugwright/sdk/driver_names.py. */}}
{{- define "plugwright.withDigest" -}}
{{- $readable := regexReplaceAll .others (lower .text) "-" | trunc 54 | trimAll "-." -}}
{{- $digest := sha256sum .original | trunc 8 -}}
{{- ternary (printf "%s-%s" $readable $digest) $digest (ne $readable "") -}}
{{- end -}}

{{/* The domain of the drivers of a domain's resources: NVIDIA makes drivers of its own. */}}
{{- define "plugwright.driverDomain" -}}
{{- ternary "nvidia.plugwright.dev" . (eq . "nvidia.com") -}}
{{- end -}}

{{/* The DRA driver of a resource, which is also the name of its DeviceClass. */}}
{{- define "plugwright.driver" -}}
{{- $name := last (splitList "/" .name) -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $name) -}}
{{- $name = include "plugwright.withDigest" (dict "text" $name "original" $name "others" "[^a-z0-9]+") -}}
{{- end -}}
{{- $full := printf "%s.%s" $name (include "plugwright.driverDomain" (first (splitList "/" .name))) -}}
{{- if and (kindIs "map" .serve) (dig "driver" "" (ternary .serve dict (kindIs "map" .serve))) -}}
{{- .serve.driver -}}
{{- else if gt (len $full) 63 -}}
{{- include "plugwright.withDigest" (dict "text" $full "original" .name "others" "[^a-z0-9.]+") -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end -}}

{{/* What a configuration, or the plugin in its place, serves by claims: entries with name, api and driver, or with the
     domain of its drivers where the machine decides the name. */}}
{{- define "plugwright.claims" -}}
{{- $resources := .config.resources -}}
{{- $plugin := .root.Values.plugin -}}
{{- if $plugin.target -}}
{{- $resources = list -}}
{{- range $plugin.resources -}}
{{- $resources = append $resources (dict "name" . "serve" $plugin.serve) -}}
{{- end -}}
{{- end -}}
{{- $claims := list -}}
{{- range $resources -}}
{{- $api := include "plugwright.api" . -}}
{{- if eq $api "device-plugin" -}}
{{- else if contains "{" .name -}}
{{- $domain := include "plugwright.driverDomain" (first (splitList "/" .name)) -}}
{{- $claims = append $claims (dict "name" .name "api" $api "domain" $domain) -}}
{{- else -}}
{{- $claims = append $claims (dict "name" .name "api" $api "driver" (include "plugwright.driver" .)) -}}
{{- end -}}
{{- end -}}
{{- toJson $claims -}}
{{- end -}}

{{/* A resource of the release that its daemons offer through the device plugin API, alone or beside claims; else empty. */}}
{{- define "plugwright.listed" -}}
{{- $listed := "" -}}
{{- if and .Values.plugin.target (ne .Values.plugin.serve "dra") -}}
{{- $listed = .Values.plugin.target -}}
{{- end -}}
{{- range include "plugwright.instances" . | fromJsonArray -}}
{{- range .config.resources -}}
{{- if and (not $listed) (ne (include "plugwright.api" .) "dra") -}}
{{- $listed = .name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $listed -}}
{{- end -}}

{{/* The same of all DaemonSets together, each driver once; refuses what only one of them would be refused for. */}}
{{- define "plugwright.allClaims" -}}
{{- $drivers := dict -}}
{{- $names := dict -}}
{{- $claims := dict -}}
{{- range include "plugwright.instances" . | fromJsonArray -}}
{{- range include "plugwright.claims" (dict "root" $ "config" .config) | fromJsonArray -}}
{{- $driver := .driver | default (printf "*.%s" .domain) -}}
{{- if and .driver (ne (get $drivers .name | default .driver) .driver) -}}
{{- fail (printf "%s must have one driver, got %s and %s" .name (get $drivers .name) .driver) -}}
{{- end -}}
{{- if and .driver (ne (get $names .driver | default .name) .name) -}}
{{- fail (printf "driver %s must be of one resource, got %s and %s" .driver (get $names .driver) .name) -}}
{{- end -}}
{{- $_ := set $drivers .name $driver -}}
{{- $_ := set $names $driver .name -}}
{{- $before := get $claims $driver | default dict -}}
{{- $_ := set $claims $driver (merge (dict "api" (ternary "both" .api (eq ($before.api | default "") "both"))) .) -}}
{{- end -}}
{{- end -}}
{{- if and $claims (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "serve: dra and both need Kubernetes 1.34 or newer, and the API server is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $claims (eq (include "plugwright.serviceAccount" .) "default") -}}
{{- fail "serve: dra and both need a service account of their own: serviceAccount.create, or serviceAccount.name" -}}
{{- end -}}
{{- $sorted := list -}}
{{- range $driver := keys $claims | sortAlpha -}}
{{- $sorted = append $sorted (get $claims $driver) -}}
{{- end -}}
{{- toJson $sorted -}}
{{- end -}}
