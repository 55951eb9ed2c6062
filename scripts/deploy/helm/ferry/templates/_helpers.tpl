{{/* The image of ferry, by digest if there is one. */}}
{{- define "ferry.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else if .tag }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The namespace of the relays. The API's namespace refuses pods on the node's network. */}}
{{- define "ferry.relayNamespace" -}}
{{- $name := .Values.relay.namespace | default (printf "%s-relays" .Release.Namespace) -}}
{{- if and .Values.api.enabled .Values.relay.enabled (eq $name .Release.Namespace) -}}
{{- fail "relay.namespace must not be the namespace of the release, in which the API runs without privileges" -}}
{{- end -}}
{{ $name }}
{{- end -}}

{{/* The name of the objects of a release that are in no namespace: ferry-node-address for ferry-relays. */}}
{{- define "ferry.nodeAddress" -}}
{{ include "ferry.relayNamespace" . | trimSuffix "-relays" }}-node-address
{{- end -}}

{{/* The labels of a component. */}}
{{- define "ferry.labels" -}}
{app.kubernetes.io/name: ferry, app.kubernetes.io/component: {{ . }}}
{{- end -}}

{{/* The seconds of a duration such as 1h30m. */}}
{{- define "ferry.seconds" -}}
{{- $sum := 0 -}}
{{- range $unit, $seconds := dict "h" 3600 "m" 60 "s" 1 -}}
{{- with regexFind (printf "[0-9]+%s" $unit) $ -}}
{{- $sum = add $sum (mul $seconds (int64 (trimSuffix $unit .))) -}}
{{- end -}}
{{- end -}}
{{ $sum }}
{{- end -}}

{{/* The text of a setting in a variable: true, 1000000, a,b. */}}
{{- define "ferry.settingText" -}}
{{- if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . }}{{ $items = append $items (include "ferry.settingText" .) }}{{ end -}}
{{ join "," $items }}
{{- else -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end -}}
{{- end -}}

{{/* The ClusterIssuer of cert-manager that signs for the fleet. */}}
{{- define "ferry.clusterIssuer" -}}
{{ .Values.certificates.certManager.clusterIssuer | default "ferry-fleet" }}
{{- end -}}

{{/* The flags of the certificate with which a process is known in its fleet. */}}
{{- define "ferry.clusterFlags" -}}
{{- if eq .Values.certificates.origin "cert-manager" -}}
- --cluster-ca=/etc/ferry/cluster/ca.crt
- --cluster-cert=/etc/ferry/cluster/tls.crt
- --cluster-key=/etc/ferry/cluster/tls.key
{{- else -}}
- --cluster-ca=/etc/ferry/authority/ca.pem
- --cluster-cert=/etc/ferry/cluster/$(POD_NAME).pem
- --cluster-key=/etc/ferry/cluster/$(POD_NAME)-key.pem
{{- end -}}
{{- end -}}

{{/* The mounts of these files: directories, so that Kubernetes updates them; Ferry reads them every 10 s. */}}
{{- define "ferry.clusterMounts" -}}
- {name: own-certificate, mountPath: /etc/ferry/cluster, readOnly: true}
{{- if ne .Values.certificates.origin "cert-manager" }}
- {name: trust, mountPath: /etc/ferry/authority, readOnly: true}
{{- end }}
{{- end -}}

{{/* The volumes with the authority of a role, and with the certificates that all processes trust. */}}
{{- define "ferry.authorityVolumes" -}}
{{- $name := (index . 0).Values.certificates.authority -}}
{{- $role := index . 1 -}}
- name: authority
  secret:
    secretName: {{ $name }}
    defaultMode: 0440
    items: [{key: {{ $role }}-ca.pem, path: ca.pem}, {key: {{ $role }}-ca-key.pem, path: ca-key.pem}]
- name: trust
  secret:
    secretName: {{ $name }}
    defaultMode: 0440
    items: [{key: ca.pem, path: ca.pem}]
{{- end -}}

{{/* The annotations of an object that Helm makes before the others and removes when it is done. */}}
{{- define "ferry.hook" -}}
{helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-weight: {{ . | quote }}, helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}
{{- end -}}

{{/* How fast the relays scale. */}}
{{- define "ferry.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Pods, value: 2, periodSeconds: 60}]
# Scale down slowly: the relay that stops drains for up to {{ .Values.relay.drainTimeout }}. (Half an hour is the longest period.)
scaleDown:
  stabilizationWindowSeconds: 3600
  policies: [{type: Pods, value: 1, periodSeconds: 1800}]
{{- end -}}
