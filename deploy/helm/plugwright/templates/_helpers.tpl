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

{{/* The values of the image that the daemons of a configuration run: that with the extras only where one is needed. */}}
{{- define "plugwright.daemonImage" -}}
{{- $values := .root.Values -}}
{{- $extras := and (not $values.plugin.target) (or $values.metrics.enabled (eq (include "plugwright.nvidia" .config) "yes")) -}}
{{- toJson (ternary $values.toolsImage $values.image $extras) -}}
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

{{/* Asks the daemon on its socket whether it serves, and waits for a yes there: by the least of Python that there is. */}}
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
sys.exit(not answer.startswith(b'{"ok"'))
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
{{- $config := merge (dict "resources" .) (omit $.Values.config "resources") -}}
{{- $own := dict "name" $name "component" "daemon" "path" "config" "config" $config -}}
{{- $instances = append $instances (merge $own $shared) -}}
{{- end -}}
{{- range $key, $entry := .Values.configs -}}
{{- $own := dict "name" (printf "%s-%s" $name $key) "component" (printf "daemon-%s" $key) -}}
{{- $_ := set $own "path" (printf "configs.%s.config" $key) -}}
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
{{- $own := dict "name" $name "component" "daemon" "path" "config" "config" (dict "resources" list) -}}
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
{{- range $instances -}}
{{- include "plugwright.check" . -}}
{{- end -}}
{{- toJson $instances -}}
{{- end -}}

{{/* Refuses what the daemon would refuse, in its words, as far as it can be seen without knowing the devices. */}}
{{- define "plugwright.check" -}}
{{- $path := .path -}}
{{- $kinds := list "drm" "fpga" "groups" "mock" "net" "nvidia" "nvme" "paths" "pci" "rdma" "usb" -}}
{{- $options := list "annotations" "cdi" "count" "dangerous" "env" "exclusive" "health" "ids" "info" "permissions" "remap" "together" "topology" -}}
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
{{- fail (printf "%s.name: %s is a resource already" $at $resource.name) -}}
{{- end -}}
{{- $names = append $names $resource.name -}}
{{- $example := $resource.name -}}
{{- if has "nvidia" $found -}}
{{- $example = $example | replace "{model}" "model" | replace "{profile}" "1g.10gb" -}}
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

{{/* The directories of the node that a configuration needs in the pod, and those that the values name. */}}
{{- define "plugwright.hostPaths" -}}
{{- $host := .config.host | default dict -}}
{{- $runtime := .root.Values.runtimeClassName -}}
{{- $root := $host.root | default "/" | trimSuffix "/" -}}
{{- $seen := list -}}
{{- $paths := list -}}
{{- range .config.resources -}}
{{- $resource := . -}}
{{- range $kind := list "drm" "fpga" "groups" "net" "nvme" "paths" "pci" "rdma" "usb" -}}
{{- if not (kindIs "invalid" (index $resource $kind)) -}}
{{- $seen = concat $seen (list "/dev" "/sys") (ternary (list "/proc") list (ne $root "")) -}}
{{- end -}}
{{- end -}}
{{- range concat (list (dict "paths" .paths)) (.groups | default list) -}}
{{- range .paths | default list -}}
{{- $wanted := . -}}
{{- if kindIs "map" . -}}
{{- $wanted = .path -}}
{{- end -}}
{{- $directory := include "plugwright.fixedPart" $wanted -}}
{{- if not (regexMatch "^/(dev|sys)(/|$)" $directory) -}}
{{- if and (eq $root "") (regexMatch "^/((etc|opt|proc|run|tmp|usr|var|var/lib|var/run)?)$" $directory) -}}
{{- fail (printf "%s: %s cannot be mounted at its own path in the daemon's pod: set config.host.root, for example to /host" $resource.name $directory) -}}
{{- end -}}
{{- $seen = append $seen $directory -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (kindIs "invalid" .pci) -}}
{{- $paths = append $paths (dict "path" ($host.deviceInfo | default "/var/run/k8s.cni.cncf.io/devinfo/dp") "written" true) -}}
{{- end -}}
{{- if .cdi -}}
{{- $paths = append $paths (dict "path" ($host.cdi | default "/var/run/cdi") "written" true) -}}
{{- end -}}
{{- with dig "mock" "facts" "" . -}}
{{- $paths = append $paths (dict "path" . "written" true) -}}
{{- end -}}
{{- if not (kindIs "invalid" .nvidia) -}}
{{- $paths = concat $paths (include "plugwright.nvidiaPaths" (dict "nvidia" .nvidia "runtime" $runtime) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- range $seen -}}
{{- $paths = append $paths (dict "path" . "mountPath" (printf "%s%s" $root .)) -}}
{{- end -}}
{{- if include "plugwright.claims" . | fromJsonArray -}}
{{- $paths = append $paths (dict "path" ($host.cdi | default "/var/run/cdi") "written" true) -}}
{{- end -}}
{{- $mounts := dict -}}
{{- range $paths -}}
{{- $mountPath := .mountPath | default .path -}}
{{- $type := ternary "Directory" "DirectoryOrCreate" (has .path (list "/dev" "/proc" "/sys" "/usr")) -}}
{{- $mount := dict "path" .path "mountPath" $mountPath "readOnly" (ne .written true) "type" $type -}}
{{- if .mounts -}}
{{- $_ := set $mount "mountPropagation" "HostToContainer" -}}
{{- end -}}
{{- $_ := set $mounts $mountPath $mount -}}
{{- end -}}
{{- range .root.Values.hostPaths -}}
{{- $_ := unset $mounts (.mountPath | default .path) -}}
{{- end -}}
{{- $sorted := list -}}
{{- range $mountPath := keys $mounts | sortAlpha -}}
{{- $sorted = append $sorted (get $mounts $mountPath) -}}
{{- end -}}
{{- toJson (concat $sorted .root.Values.hostPaths) -}}
{{- end -}}

{{/* The directory of a path, or the one before its first wildcard; /dev for all that is below it. */}}
{{- define "plugwright.fixedPart" -}}
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

{{/* NVIDIA's runtime brings the device nodes itself, where the daemon has its class. */}}
{{- define "plugwright.nvidiaPaths" -}}
{{- $paths := list -}}
{{- $runtime := .runtime -}}
{{- range list .nvidia -}}
{{- if not .simulate -}}
{{- if not $runtime -}}
{{- $paths = append $paths (dict "path" "/dev") -}}
{{- end -}}
{{- $root := dig "driver" "root" "/" . | trimSuffix "/" -}}
{{- $host := dig "driver" "host" "" . | default (dig "driver" "root" "/" .) | trimSuffix "/" -}}
{{- if and $root $host -}}
{{- $paths = append $paths (dict "path" $host "mountPath" $root "mounts" true) -}}
{{- else if $root -}}
{{- $paths = append $paths (dict "path" "/usr" "mountPath" (printf "%s/usr" $root)) -}}
{{- end -}}
{{- end -}}
{{- $strategies := .strategy | default "device-nodes" -}}
{{- if kindIs "string" $strategies -}}
{{- $strategies = list $strategies -}}
{{- end -}}
{{- if or (has "cdi-cri" $strategies) (has "cdi-annotations" $strategies) -}}
{{- $paths = append $paths (dict "path" (dig "cdi" "dir" "/var/run/cdi" .) "written" true) -}}
{{- $programs := dig "cdi" "programs" "/var/lib/plugwright/bin" . -}}
{{- if ne $programs "/var/lib/plugwright/bin" -}}
{{- $paths = append $paths (dict "path" $programs "written" true) -}}
{{- end -}}
{{- end -}}
{{- if eq (dig "share" "by" "" .) "vgpu" -}}
{{- $vgpu := dig "share" "vgpu" dict . -}}
{{- $paths = append $paths (dict "path" ($vgpu.root | default "/var/lib/plugwright/vgpu") "written" true) -}}
{{- if eq (dig "share" "library" "" .) "hami" -}}
{{- $paths = append $paths (dict "path" (dir ($vgpu.library | default "/usr/local/vgpu/libvgpu.so"))) -}}
{{- if $vgpu.locks -}}
{{- $paths = append $paths (dict "path" $vgpu.locks "written" true) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $paths -}}
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

{{/* The API through which a resource is offered: device-plugin, dra or both. */}}
{{- define "plugwright.api" -}}
{{- if kindIs "map" .serve -}}
{{- .serve.api -}}
{{- else -}}
{{- .serve | default "device-plugin" -}}
{{- end -}}
{{- end -}}

{{/* A name with the letters that DNS allows, and a digest of what it was: as in plugwright/dra/names.py. */}}
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
