# SPDX-License-Identifier: MIT
"""The fields of the kinds of Kubernetes objects that packaging/kubernetes has, and of what they are made of, for checking
manifests without a cluster. A field that is not told here is none, or is to be told here first."""

import re

QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|Ki|Mi|Gi|M|G)?"
NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
PERCENT = r"[0-9]+%"

# name: type, "!" where it has to be there. A type is one of str, int, bool, a structure of this table, [TYPE], {TYPE} (a map of
# strings to it), words with "|" between them of which the value is one, or /REGULAR EXPRESSION/.
TYPES = {
    "ObjectMeta": {"name": f"/{NAME}/!", "namespace": f"/{NAME}/", "labels": "{str}", "annotations": "{str}"},
    "Namespace": {"metadata": "ObjectMeta!"},
    "ServiceAccount": {"metadata": "ObjectMeta!", "automountServiceAccountToken": "bool"},
    "ClusterRole": {"metadata": "ObjectMeta!", "rules": "[PolicyRule]!"},
    "PolicyRule": {"apiGroups": "[str]!", "resources": "[str]!", "verbs": "[get|list|watch|create|update|patch|delete]!"},
    "ClusterRoleBinding": {"metadata": "ObjectMeta!", "roleRef": "RoleRef!", "subjects": "[Subject]!"},
    "RoleRef": {"apiGroup": "rbac.authorization.k8s.io|!", "kind": "ClusterRole|Role!", "name": "str!"},
    "Subject": {"kind": "ServiceAccount|User|Group!", "name": "str!", "namespace": "str"},
    "DaemonSet": {"metadata": "ObjectMeta!", "spec": "DaemonSetSpec!"},
    "DaemonSetSpec": {"selector": "LabelSelector!", "template": "PodTemplateSpec!", "updateStrategy": "DaemonSetUpdateStrategy",
                      "minReadySeconds": "int", "revisionHistoryLimit": "int"},
    "LabelSelector": {"matchLabels": "{str}!"},
    "DaemonSetUpdateStrategy": {"type": "RollingUpdate|OnDelete!", "rollingUpdate": "RollingUpdateDaemonSet"},
    "RollingUpdateDaemonSet": {"maxUnavailable": "IntOrPercent", "maxSurge": "IntOrPercent"},
    "PodTemplateSpec": {"metadata": "PodMeta!", "spec": "PodSpec!"},
    "PodMeta": {"labels": "{str}!", "annotations": "{str}"},
    "PodSpec": {"containers": "[Container]!", "volumes": "[Volume]", "nodeSelector": "{str}", "tolerations": "[Toleration]",
                "automountServiceAccountToken": "bool", "imagePullSecrets": "[LocalObjectReference]",
                "serviceAccountName": "str", "terminationGracePeriodSeconds": "int", "hostPID": "bool", "hostNetwork": "bool",
                "priorityClassName": "str"},
    "LocalObjectReference": {"name": "str!"},
    "Toleration": {"key": "str", "operator": "Exists|Equal", "value": "str", "effect": "NoSchedule|PreferNoSchedule|NoExecute"},
    "Container": {"name": f"/{NAME}/!", "image": "str!", "imagePullPolicy": "Always|IfNotPresent|Never", "command": "[str]",
                  "args": "[str]", "env": "[EnvVar]", "startupProbe": "Probe", "readinessProbe": "Probe", "livenessProbe": "Probe",
                  "lifecycle": "Lifecycle", "terminationMessagePolicy": "File|FallbackToLogsOnError",
                  "resources": "ResourceRequirements", "securityContext": "SecurityContext", "volumeMounts": "[VolumeMount]"},
    "EnvVar": {"name": "str!", "value": "str", "valueFrom": "EnvVarSource"},
    "EnvVarSource": {"fieldRef": "ObjectFieldSelector!"},
    "ObjectFieldSelector": {"fieldPath": "status.hostIP|spec.nodeName|metadata.name|metadata.namespace!"},
    "Probe": {"exec": "ExecAction!", "initialDelaySeconds": "int", "periodSeconds": "int", "timeoutSeconds": "int",
              "failureThreshold": "int", "successThreshold": "int"},
    "ExecAction": {"command": "[str]!"},
    "Lifecycle": {"preStop": "LifecycleHandler!"},
    "LifecycleHandler": {"exec": "ExecAction!"},
    "ResourceRequirements": {"requests": "Quantities", "limits": "Quantities"},
    "Quantities": {"cpu": f"/{QUANTITY}/", "memory": f"/{QUANTITY}/", "ephemeral-storage": f"/{QUANTITY}/"},
    "SecurityContext": {"runAsUser": "int", "runAsGroup": "int", "runAsNonRoot": "bool", "privileged": "bool",
                        "allowPrivilegeEscalation": "bool", "readOnlyRootFilesystem": "bool", "capabilities": "Capabilities",
                        "seccompProfile": "SeccompProfile", "seLinuxOptions": "SELinuxOptions"},
    "Capabilities": {"add": "[str]", "drop": "[str]"},
    "SeccompProfile": {"type": "RuntimeDefault|Unconfined|Localhost!", "localhostProfile": "str"},
    "SELinuxOptions": {"type": "str", "level": "str", "role": "str", "user": "str"},
    "VolumeMount": {"name": "str!", "mountPath": "str!", "readOnly": "bool", "subPath": "str"},
    "Volume": {"name": f"/{NAME}/!", "hostPath": "HostPathVolumeSource", "emptyDir": "EmptyDirVolumeSource"},
    "HostPathVolumeSource": {"path": "str!", "type": "Directory|DirectoryOrCreate|File|FileOrCreate|Socket!"},
    "EmptyDirVolumeSource": {"medium": "Memory|", "sizeLimit": f"/{QUANTITY}/"},
}
VERSIONS = {"Namespace": "v1", "ServiceAccount": "v1", "DaemonSet": "apps/v1", "ClusterRole": "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding": "rbac.authorization.k8s.io/v1"}
SCALARS = {"str": str, "int": int, "bool": bool}


def structure_errors(value, name, at):
    if not isinstance(value, dict):
        return [f"{at}: is no {name}"]
    fields, found = TYPES[name], []
    for key, inner in value.items():
        found += errors_of(inner, fields[key].rstrip("!"), f"{at}.{key}") if key in fields else [f"{at}: {name} has no {key}"]
    return found + [f"{at}: {name} lacks {key}" for key, kind in fields.items() if kind.endswith("!") and key not in value]


def errors_of(value, kind, at):
    """What is wrong with a value that is to be of a type, in lines."""
    if kind in TYPES:
        return structure_errors(value, kind, at)
    if kind[0] == "[":
        items = enumerate(value) if isinstance(value, list) and value else None
        return [f"{at}: is no list, or empty"] if items is None else \
            [line for i, item in items for line in errors_of(item, kind[1:-1], f"{at}[{i}]")]
    if kind[0] == "{":
        items = value.items() if isinstance(value, dict) and value else None
        return [f"{at}: is no map, or empty"] if items is None else \
            [line for key, item in items for line in errors_of(item, kind[1:-1], f"{at}.{key}")]
    if kind == "IntOrPercent":
        good = type(value) is int or isinstance(value, str) and re.fullmatch(PERCENT, value)
    elif kind[0] == "/":
        good = isinstance(value, str) and re.fullmatch(kind[1:-1], value)
    else:
        good = type(value) is SCALARS[kind] if kind in SCALARS else value in kind.split("|")
    return [] if good else [f"{at}: {value!r} is no {kind}"]


def pod_errors(pod, at):
    """What the API server asks of a pod that no type tells: a mount has its volume, and a volume one source."""
    volumes = {volume.get("name") for volume in pod.get("volumes", [])}
    mounts = {mount.get("name") for container in pod["containers"] for mount in container.get("volumeMounts", [])}
    return [f"{at}: volumes and mounts differ: {sorted(volumes ^ mounts, key=str)}"] * (volumes != mounts) + \
        [f"{at}: volume {volume['name']} has {len(volume) - 1} sources" for volume in pod.get("volumes", []) if len(volume) != 2]


def object_errors(thing):
    """What is wrong with an object of a manifest, in lines; none: nothing."""
    if not isinstance(thing, dict) or str(thing.get("kind")) not in VERSIONS:
        return [f"no kind that is told here: {str(thing)[:80]}"]
    kind, version = thing["kind"], thing.get("apiVersion")
    found = [] if version == VERSIONS[kind] else [f"{kind}: apiVersion is {version}, not {VERSIONS[kind]}"]
    found += structure_errors({key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}, kind, kind)
    if kind == "DaemonSet" and not found:
        template, selector = thing["spec"]["template"], thing["spec"]["selector"]["matchLabels"]
        found += pod_errors(template["spec"], "DaemonSet.spec.template.spec")
        if not selector.items() <= template["metadata"]["labels"].items():
            found.append("DaemonSet: the selector does not select the pods")
    return found
