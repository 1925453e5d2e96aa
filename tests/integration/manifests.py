#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The manifests of packaging/kubernetes: objects of Kubernetes's API, the same by Kustomize and by Helm, with no right that is
not told why. No cluster is needed."""

import copy
import json
import os
import re
import shutil

from cases import SOURCE, Skipped, case, expect, main, read_text, run

try:
    import yaml

    import helm_template
except ImportError:
    yaml = None
import kubernetes_types

KUBERNETES = os.path.join(SOURCE, "packaging", "kubernetes")
BASE = os.path.join(KUBERNETES, "kustomize", "base")
OVERLAYS = os.path.join(KUBERNETES, "kustomize", "overlays")
CHART = os.path.join(KUBERNETES, "chart")


def needs_yaml():
    if not yaml:
        raise Skipped("not installed: python3-yaml")


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document is not None]


def load(*path):
    needs_yaml()
    found = documents(read_text(os.path.join(*path)))
    expect(len(found) == 1, f"{path[-1]} has {len(found)} documents")
    return found[0]


def base_objects():
    """What the files say; that `kubectl kustomize` adds labels to it alone is a case of its own."""
    return [thing for name in load(BASE, "kustomization.yaml")["resources"] for thing in documents(read_text(os.path.join(BASE, name)))]


def chart_objects(change=None):
    chart, values = load(CHART, "Chart.yaml"), load(CHART, "values.yaml")
    values.update(change or {})
    folder = os.path.join(CHART, "templates")
    texts = [helm_template.render(read_text(os.path.join(folder, name)), chart, values) for name in sorted(os.listdir(folder))]
    return [thing for text in texts for thing in documents(text)]


def by_name(objects, with_labels=True):
    """{(kind, name): object}."""
    found = {(thing["kind"], thing["metadata"]["name"]): copy.deepcopy(thing) for thing in objects}
    expect(len(found) == len(objects), "two objects have the same name")
    for thing in found.values() if not with_labels else ():
        thing["metadata"].pop("labels", None)
        if thing["kind"] == "DaemonSet":
            for place in (thing["spec"]["selector"], thing["spec"]["template"]["metadata"]):
                place.pop("matchLabels", place.pop("labels", None))
    return found


def are_right(objects, what):
    for thing in objects:
        found = kubernetes_types.object_errors(thing)
        expect(not found, f"{what}: {'; '.join(found[:5])}")


def places(value, at=()):
    """The path of every key of maps, however deep."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict):
            yield (*at, key)
        yield from places(inner, (*at, key))


def changed_at(thing, path, change):
    other = copy.deepcopy(thing)
    parent = other
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return other


def misspell(parent, key):
    parent[key + "s"] = parent.pop(key)


def make_strange(parent, key):
    parent[key] = [[parent[key]]]


@case
def objects_are_of_the_api(bed):
    needs_yaml()
    are_right(base_objects(), "base")
    are_right(chart_objects(), "chart")
    are_right(chart_objects({"uninstallOnStop": True, "seLinuxOptions": {"type": "spc_t"}, "imagePullSecrets": [{"name": "one"}],
                             "nodeSelector": {}, "tolerations": []}), "chart with other values")


@case
def mistakes_in_objects_are_found(bed):
    """Each field in turn is misspelt, then of a wrong type. Only keys of free maps can be anything."""
    needs_yaml()
    free = ("labels", "matchLabels", "nodeSelector")
    count = 0
    for thing in base_objects():
        for path in places(thing):
            for change in (make_strange, *([] if path[-2:-1] and path[-2] in free else [misspell])):
                found = kubernetes_types.object_errors(changed_at(thing, path, change))
                expect(found, f"{change.__name__} of {thing['kind']} {path} is not found")
                count += 1
    expect(count > 100, f"only {count} mistakes were made")


@case
def chart_is_as_base(bed):
    """With its default values it has the same objects but for labels. Helm makes the namespace by itself, or is told to."""
    needs_yaml()
    base, chart = by_name(base_objects(), with_labels=False), by_name(chart_objects(), with_labels=False)
    del base["Namespace", "brumate"]
    expect(base.keys() == chart.keys(), f"base has {sorted(base)}, the chart {sorted(chart)}")
    for name, thing in base.items():
        expect(thing == chart[name], f"{name} differs:\n{json.dumps(thing, sort_keys=True)}\n{json.dumps(chart[name], sort_keys=True)}")


@case
def values_do_what_they_say(bed):
    needs_yaml()
    kinds = [thing["kind"] for thing in chart_objects({"checkpointAccount": False})]
    expect(kinds == ["DaemonSet"], f"without the account there are {kinds}")
    plain, other = (next(thing for thing in chart_objects(change) if thing["kind"] == "DaemonSet")["spec"]["template"]["spec"]
                    for change in (None, {"uninstallOnStop": True, "image": {"repository": "a/b", "tag": "7", "pullPolicy": "Always"}}))
    expect("lifecycle" not in plain["containers"][0], "a pod that ends uninstalls by default")
    container = other["containers"][0]
    expect(container["lifecycle"]["preStop"]["exec"]["command"][-1] == "uninstall", "uninstallOnStop does nothing")
    expect(container["image"] == "a/b:7" and container["imagePullPolicy"] == "Always", f"image {container['image']}")


def schema_errors(value, schema, at="values"):
    """As far as values.schema.json uses JSON Schema."""
    names = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not isinstance(value, tuple(names[kind] for kind in kinds)):
        return [f"{at} is no {kinds}"]
    found = [f"{at}: {value!r}"] if "enum" in schema and value not in schema["enum"] else []
    if isinstance(value, dict):
        found += [f"{at} lacks {key}" for key in schema.get("required", []) if key not in value]
        for key, inner in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            found += [f"{at} has no {key}"] if rule is False else [] if rule is True else schema_errors(inner, rule, f"{at}.{key}")
    if isinstance(value, list) and "items" in schema:
        found += [line for inner in value for line in schema_errors(inner, schema["items"], at + "[]")]
    return found


@case
def schema_is_of_the_values(bed):
    values, schema = load(CHART, "values.yaml"), json.loads(read_text(os.path.join(CHART, "values.schema.json")))
    expect(not schema_errors(values, schema), f"{schema_errors(values, schema)}")
    expect(values.keys() == schema["properties"].keys() - {"global"}, "values and schema have other keys")
    for path in [path for path in places(values) if path[0] in ("image", "checkpointAccount", "uninstallOnStop")]:
        for change in (misspell, make_strange):
            expect(schema_errors(changed_at(values, path, change), schema), f"{change.__name__} of {path} is not found")
    used = set(re.findall(r"\.Values\.(\w+)", "".join(read_text(os.path.join(CHART, "templates", name))
                                                     for name in os.listdir(os.path.join(CHART, "templates")))))
    expect(used == values.keys(), f"templates use {sorted(used)}, the values are {sorted(values)}")


@case
def pods_have_no_more_than_they_need(bed):
    needs_yaml()
    pod = by_name(base_objects())["DaemonSet", "brumate"]["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    expect(context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"], f"{context}")
    expect(not context["privileged"] and not context["allowPrivilegeEscalation"], f"{context}")
    expect(not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys() and not pod["automountServiceAccountToken"], f"{sorted(pod)}")
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    expect(paths == {"/usr", "/usr/local", "/etc/criu", "/etc/cdi"}, f"of the node it has {sorted(paths)}")
    rules = [rule for thing in base_objects() if thing["kind"] == "ClusterRole" for rule in thing["rules"]]
    expect(rules == [{"apiGroups": [""], "resources": ["nodes/checkpoint"], "verbs": ["create"]}], f"{rules}")


@case
def versions_are_the_projects(bed):
    version = re.search(r"version: '([0-9.]+)'", read_text(os.path.join(SOURCE, "meson.build")))[1]
    chart = load(CHART, "Chart.yaml")
    images = {thing["spec"]["template"]["spec"]["containers"][0]["image"] for objects in (base_objects(), chart_objects())
              for thing in objects if thing["kind"] == "DaemonSet"}
    expect({chart["version"], str(chart["appVersion"])} == {version} and images == {f"brumate-node:{version}"},
           f"brumate is {version}, the chart {chart['version']}, images {images}")


def kustomize():
    """`kubectl kustomize`, of 1.24 or newer: older ones do not know all that is used."""
    needs_yaml()
    if not shutil.which("kubectl"):
        raise Skipped("not installed: kubectl")
    found = re.search(r"v1\.(\d+)", run(["kubectl", "version", "--client"]).out)
    if not found or int(found[1]) < 24:
        raise Skipped("kubectl is older than 1.24")

    def render(path):
        done = run(["kubectl", "kustomize", path])
        expect(done.code == 0, done.why())
        objects = documents(done.out)
        are_right(objects, path)
        return objects

    return render


@case
def kustomize_renders_base_and_overlays(bed):
    render = kustomize()
    objects = render(BASE)
    expect(by_name(objects, with_labels=False) == by_name(base_objects(), with_labels=False), "base is rendered as something else")
    expect(all(thing["metadata"]["labels"]["app.kubernetes.io/name"] == "brumate" for thing in objects), "an object has no label")
    for name in os.listdir(OVERLAYS):
        expect({(thing["kind"], thing["metadata"]["name"]) for thing in render(os.path.join(OVERLAYS, name))} ==
               by_name(objects).keys(), f"overlay {name} has other objects")


@case
def helm_renders_the_chart(bed):
    """As the renderer of these tests does."""
    needs_yaml()
    if not shutil.which("helm"):
        raise Skipped("not installed: helm")
    done = run(["helm", "lint", "--strict", CHART])
    expect(done.code == 0, done.why())
    done = run(["helm", "template", "brumate", CHART, "--namespace", "brumate"])
    expect(done.code == 0, done.why())
    expect(by_name(documents(done.out)) == by_name(chart_objects()), "helm renders something else")


main()
