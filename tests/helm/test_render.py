"""The chart's objects are valid with every option, and need no privilege by default."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import frd
from tests.helm.chart import (
    CHART,
    Cluster,
    Object,
    Rendered,
    check,
    containers,
    helm,
    recipe,
    render,
)

Values = dict[str, Any]

EVERY_POD: Values = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podLabels": {"team": "infra"},
    "podAnnotations": {"note": "1"},
}
MONITOR: Values = {
    "relabelings": [{"action": "labeldrop", "regex": "pod"}],
    "metricRelabelings": [{"action": "drop", "regex": "x", "sourceLabels": ["__name__"]}],
}
SPREAD: Values = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
EXTRAS: Values = {
    "extraEnv": [
        {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ],
    "extraArgs": ["--log-level=debug", "--log-format", "text"],
    "extraVolumes": [{"name": "ca-bundle", "configMap": {"name": "cas"}}],
    "extraVolumeMounts": [{"name": "ca-bundle", "mountPath": "/etc/cas", "readOnly": True}],
}
DIGEST = "sha256:" + "0" * 64
OPTIONS: dict[str, Values] = {
    "chart of a parent": {"global": {"anything": 1}},
    "names": {"nameOverride": "watch", "commonLabels": {"team": "infra"}},
    "full name": {"fullnameOverride": "a-rather-long-name-for-the-watcher-of-jobs"},
    "digest": {"image": {"digest": DIGEST, "pullPolicy": "Always"}},
    "registry": {"image": {"registry": "registry.example", "repository": "team/frd"}},
    "pull secret": {"imagePullSecrets": [{"name": "pull"}]},
    "insecure": {"insecure": True},
    "own secret": {"tls": {"source": "secret", "secretName": "mine"}, "auth": {"secretName": "t"}},
    "cert-manager": {
        "tls": {"source": "certManager", "certManager": {"issuerRef": {"name": "ca"}}}
    },
    "client certificates": {"tls": {"clientCertificates": True}},
    "config": {
        "config": {
            "policy": {"stall_after_s": 12.5, "max_ranks": 20000},
            "expected_agents": {"a job": 3, "b": 4},
            "store": {"journal_bytes": 268435456},
        }
    },
    "webhook": {
        "notify": {"secretName": "chat"},
        "config": {
            "notify": [{"url_file": "/etc/frd/notify/url", "on": ["opened"]}, {"url": "http://h/"}]
        },
    },
    "page": {"config": {"web": False, "public_url": "https://watch.example"}},
    "service": {"service": {"type": "LoadBalancer", "annotations": {"a": "b"}, "grpcPort": 19373}},
    "IPv6": {"bindAddress": "[::]"},
    "no volume": {"persistence": {"enabled": False}},
    "volume": {"persistence": {"storageClass": "fast", "annotations": {"a": "b"}}},
    "no account": {
        "serviceAccount": {"create": False, "name": "mine"},
        "agent": {"daemonset": {"serviceAccount": {"create": False, "name": "mine"}}},
    },
    "accounts": {
        "serviceAccount": {"annotations": {"a": "b"}},
        "agent": {
            "daemonset": {"enabled": True, "serviceAccount": {"annotations": {"c": "d"}}},
        },
    },
    "pod": EVERY_POD | {"topologySpreadConstraints": [SPREAD]},
    "extras": EXTRAS,
    "extras of the sidecar": {"agent": EXTRAS},
    "extras of the daemonset": {"agent": EXTRAS | {"daemonset": {"enabled": True}}},
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {
                "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
                "nginx.ingress.kubernetes.io/proxy-buffering": "off",
            },
            "hosts": ["frd.example", "frd.team.example"],
            "tls": [{"hosts": ["frd.example", "frd.team.example"], "secretName": "web"}],
        }
    },
    "ingress of the default class": {"ingress": {"enabled": True, "hosts": ["frd.example"]}},
    "cluster": {
        "replicas": 3,
        "cluster": {"secretName": "frd-nats"},
        "config": {
            "cluster": {
                "servers": [f"tls://nats-{n}.nats-headless.nats.svc:4222" for n in range(3)],
                "user_file": "/etc/frd/nats/user",
                "tls_ca_file": "/etc/frd/nats/ca.crt",
            }
        },
    },
    "budget": {"podDisruptionBudget": {"enabled": True}},
    "no policy": {"networkPolicy": {"enabled": False}},
    "agents elsewhere": {"agent": {"namespaces": ["training", "frd", "more"]}},
    "agent": {"agent": {"config": {"poll_s": 1, "log_level": "debug"}, "gpus": True}},
    "root ranks": {"agent": {"sidecar": {"runAsUser": 0}}},
    "root ranks with capabilities": {
        "agent": {"sidecar": {"runAsUser": 0, "capabilities": ["SYS_PTRACE"]}}
    },
    "daemonset": {"agent": {"daemonset": {"enabled": True} | EVERY_POD}},
    "daemonset of one user": {"agent": {"daemonset": {"enabled": True, "runAsUser": 1000}}},
    "tracing": {
        "agent": {
            "daemonset": {
                "enabled": True,
                "runAsUser": 0,
                "hostPID": True,
                "capabilities": ["SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE", "FOWNER"],
            }
        }
    },
    "monitors": {"serviceMonitor": MONITOR, "podMonitor": MONITOR},
    "monitor of agents": {
        "podMonitor": {
            "namespace": "monitoring",
            "namespaces": ["training", "frd"],
            "authorization": {"type": "Bearer", "credentials": {"name": "agents", "key": "token"}},
        }
    },
    "more objects": {
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": '{{ include "frd.fullname" . }}-more',
                    "namespace": "{{ .Release.Namespace }}",
                    "labels": {"team": "infra"},
                },
                "data": {"service": '{{ include "frd.agentService" . }}'},
            },
            """apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-text
  namespace: {{ .Release.Namespace }}
  labels: {{- include "frd.labels" (dict "root" . "component" "more") | nindent 4 }}
""",
        ]
    },
    "no monitors": {
        kind: {"enabled": False}
        for kind in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards", "tests")
    },
    "monitoring": {"monitoring": {"labels": {"release": "prometheus"}}},
    "rules": {
        "prometheusRule": {
            "additionalRuleLabels": {"team": "training"},
            "alerts": {"FrdDown": {"critical": {"for": "5m", "severity": "page"}}},
        },
        "runbookUrl": "https://git/",
    },
    "dashboards": {"dashboards": {"additionalLabels": {"a": "b"}, "annotations": {"c": "d"}}},
}
OLD_AND_NEW = ("1.25", "1.27", "1.28", "1.29", "1.33", "1.37")


def merged(*values: Values) -> Values:
    """All of them together; later values win."""
    out: Values = {}
    for one in values:
        for key, value in one.items():
            both = isinstance(value, dict) and isinstance(out.get(key), dict)
            out[key] = merged(out[key], value) if both else value
    return out


EVERYTHING = merged(*(v for k, v in OPTIONS.items() if k not in ("insecure", "no monitors")))


def labels(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"]["labels"]
    return found


def assert_sound(rendered: Rendered, version: str) -> None:
    """Checks that hold for all values."""
    ids = [(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]) for o in rendered.objects]
    assert len(set(ids)) == len(ids)
    for thing in rendered.objects:
        check(thing, version)
        if "helm.sh/chart" not in labels(thing):
            assert labels(thing) == {"team": "infra"}  # of `extraObjects`: as given
            continue
        assert labels(thing)["app.kubernetes.io/instance"] == "frd"
        for name in ("name", "version", "component", "part-of", "managed-by"):
            assert labels(thing)[f"app.kubernetes.io/{name}"], thing
        assert labels(thing)["helm.sh/chart"].startswith("frd-")
    for _, pod in rendered.pods():
        mounted = {m["name"] for c in containers(pod) for m in c.get("volumeMounts", ())}
        claimed = {v["name"] for v in pod.get("volumes", ())}
        assert mounted - {"data"} == claimed - {"data"}
        assert not pod.get("automountServiceAccountToken", True)


@pytest.mark.parametrize("values", OPTIONS.values(), ids=OPTIONS)
def test_each_option_alone_renders_valid_objects(values: Values) -> None:
    """With each option, every object passes its schema."""
    assert_sound(render(values), "1.37")


@pytest.mark.parametrize("version", OLD_AND_NEW)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_version_of_kubernetes_takes_it(values: Values, version: str) -> None:
    """Defaults and all options together are valid from the oldest version to the newest."""
    assert_sound(render(values, cluster=Cluster(version)), version)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_helm_lint_has_no_complaint(values: Values) -> None:
    """`helm lint --strict` has nothing to say, not even a recommendation."""
    report = helm.lint(CHART, values, strict=True, kube_version="v1.33.0")
    assert [m["error"] for m in report["messages"]] == []
    assert report["errors"] == []


def test_without_operators_only_kubernetes_own_objects_are_sent() -> None:
    """A cluster without the Prometheus operator gets none of its objects, and the notes say so."""
    rendered = render(cluster=Cluster(apis=()))
    assert {thing["apiVersion"] for thing in rendered.objects} <= {
        "v1",
        "apps/v1",
        "networking.k8s.io/v1",
    }
    assert "by hand" in " ".join(rendered.notes.split())


def test_a_missing_cert_manager_is_an_error() -> None:
    """Without cert-manager the installation fails; no pod waits for its Secret for ever."""
    values = OPTIONS["cert-manager"]
    assert render(values).one("Certificate")["spec"]["issuerRef"]["name"] == "ca"
    with pytest.raises(helm.HelmRenderError, match=r"install cert-manager"):
        render(values, cluster=Cluster(apis=()))
    with pytest.raises(helm.HelmRenderError, match=r"certManager\.issuerRef\.name: empty"):
        render({"tls": {"source": "certManager"}})


def privileges(pod: Object) -> list[str]:
    """What a pod has beyond the restricted Pod Security Standard."""
    found = [key for key in ("hostPID", "hostNetwork", "hostIPC") if pod.get(key)]
    found += [v["name"] for v in pod.get("volumes", ()) if "hostPath" in v]
    for container in containers(pod):
        context = pod.get("securityContext", {}) | container["securityContext"]
        name = container["name"]
        if context.get("privileged") or context["allowPrivilegeEscalation"]:
            found.append(f"{name}: privileged")
        if context["capabilities"] != {"drop": ["ALL"]}:
            found.append(f"{name}: capabilities")
        if not context["runAsNonRoot"] or context["runAsUser"] == 0:
            found.append(f"{name}: root")
        if not context["readOnlyRootFilesystem"]:
            found.append(f"{name}: writable")
        if context["seccompProfile"] != {"type": "RuntimeDefault"}:
            found.append(f"{name}: seccomp")
        if any("hostPort" in port for port in container.get("ports", ())):
            found.append(f"{name}: hostPort")
    return found


def sidecar(values: Values) -> Object:
    """The containers that the notes add to a pod of ranks."""
    return {"containers": recipe(values)["initContainers"]}


def test_the_default_install_is_not_privileged() -> None:
    """Neither a pod nor the sidecar goes beyond the restricted standard, and no account gets a
    right in the cluster."""
    assert privileges(sidecar({})) == []
    assert privileges(sidecar(OPTIONS["root ranks"])) == ["frd-tap: root", "frd-agent: root"]
    rendered = render()
    assert [name for name, _ in rendered.pods()] == ["frd", "frd-test-ready"]
    for name, pod in rendered.pods():
        assert privileges(pod) == [], name
    assert {thing["kind"] for thing in rendered.objects} == {
        "ConfigMap",
        "NetworkPolicy",
        "Pod",
        "PodMonitor",
        "PrometheusRule",
        "Secret",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
        "StatefulSet",
    }
    assert rendered.one("ServiceAccount")["automountServiceAccountToken"] is False
    assert {thing["metadata"]["namespace"] for thing in rendered.objects} == {"frd"}


def test_the_daemonset_takes_only_what_is_asked_for() -> None:
    """By default a directory of the host, as root without capabilities; more only by values. Its
    group is that of the ranks, by default the number of the user, because the kernel shows a
    process only to both; a sidecar has that of its pod."""
    pod = render(OPTIONS["daemonset"]).pod("DaemonSet")
    prepares = ["frd-tap: capabilities", "frd-tap: root"]
    assert privileges(pod) == ["frd", *prepares, "frd-agent: root"]
    pod = render(OPTIONS["daemonset of one user"]).pod("DaemonSet")
    assert privileges(pod) == ["frd", *prepares]
    pod = render(OPTIONS["tracing"]).pod("DaemonSet")
    agent = ["frd-agent: capabilities", "frd-agent: root"]
    assert privileges(pod) == ["hostPID", "frd", *prepares, *agent]
    for group, given in ((None, 1000), (0, 0), (4000, 4000)):
        daemonset = {"enabled": True, "runAsUser": 1000, "runAsGroup": group}
        pod = render({"agent": {"daemonset": daemonset}}).pod("DaemonSet")
        assert pod["containers"][0]["securityContext"]["runAsGroup"] == given
    assert not any("runAsGroup" in c["securityContext"] for c in sidecar({})["containers"])


def test_both_agents_get_the_capabilities_that_are_asked_for() -> None:
    """They are added to the agent alone, as root, on top of none; an agent with them still gains
    nothing by executing a file."""
    given = render(OPTIONS["tracing"]).pod("DaemonSet")
    asked = OPTIONS["tracing"]["agent"]["daemonset"]["capabilities"]
    tap, sidecar = recipe(OPTIONS["root ranks with capabilities"])["initContainers"]
    of_node = given["containers"][0]
    assert of_node["securityContext"].pop("runAsGroup") == 0
    for container, capabilities in ((of_node, asked), (sidecar, ["SYS_PTRACE"])):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": capabilities},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    assert tap["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("where", ["sidecar", "daemonset"])
def test_capabilities_without_root_are_refused(where: str) -> None:
    """Kubernetes gives them to root only, so they would silently have no effect."""
    given = {"enabled": True} if where == "daemonset" else {}
    values = {"agent": {where: given | {"runAsUser": 1000, "capabilities": ["SYS_PTRACE"]}}}
    said = rf"agent\.{where}\.capabilities: SYS_PTRACE: .* set agent\.{where}\.runAsUser to 0"
    with pytest.raises(helm.HelmRenderError, match=said):
        render(values)


def tolerated(taint: Values, tolerations: list[Values]) -> bool:
    """As Kubernetes decides."""
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in tolerations
    )


def test_agents_run_on_gpu_nodes_and_not_on_control_planes() -> None:
    """By taints: a control plane without one, the only node of a small cluster, gets an agent."""
    pod = render({"agent": {"daemonset": {"enabled": True}}}).pod("DaemonSet")
    for taint in (
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoExecute"},
        {"key": "amd.com/gpu", "effect": "NoSchedule"},
        {"key": "sku", "value": "gpu", "effect": "NoSchedule"},
    ):
        assert tolerated(taint, pod["tolerations"]), taint
    for key in ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"):
        assert not tolerated({"key": key, "effect": "NoSchedule"}, pod["tolerations"])
    assert not {"affinity", "nodeSelector"} & set(pod)


def test_service_and_agents_have_an_account_each() -> None:
    """Neither has a token; one account for both only if the values say so."""
    rendered = render(OPTIONS["accounts"])
    assert rendered.pod()["serviceAccountName"] == "frd"
    assert rendered.pod("DaemonSet")["serviceAccountName"] == "frd-agent"
    for name, given in (("frd", {"a": "b"}), ("frd-agent", {"c": "d"})):
        account = rendered.one("ServiceAccount", name)
        assert account["metadata"]["annotations"] == given
        assert account["automountServiceAccountToken"] is False
    assert len(render().of("ServiceAccount")) == 1
    rendered = render(merged(OPTIONS["daemonset"], OPTIONS["no account"]))
    assert not rendered.of("ServiceAccount")
    assert {pod.get("serviceAccountName", "mine") for _, pod in rendered.pods()} == {"mine"}
    with pytest.raises(helm.HelmRenderError, match=r"frd is the account of the service"):
        render({"agent": {"daemonset": {"enabled": True, "serviceAccount": {"name": "frd"}}}})


def test_the_registry_is_put_in_front() -> None:
    """Of every image, in pods, notes and the test's pod; with a digest, too."""
    for given, image in (
        ({"registry": "registry.example"}, f"registry.example/frd:{frd.__version__}"),
        ({"registry": "registry.example/team/", "tag": "1"}, "registry.example/team/frd:1"),
        ({"registry": "r.example:5000", "digest": DIGEST}, f"r.example:5000/frd@{DIGEST}"),
        ({}, f"frd:{frd.__version__}"),
    ):
        rendered = render({"image": given, "agent": {"daemonset": {"enabled": True}}})
        pods = [pod for _, pod in rendered.pods()] + [recipe({"image": given})]
        images = {c["image"] for pod in pods for c in containers(pod) if "image" in c}
        assert images == {image}


def test_more_objects_are_templates() -> None:
    """As maps and as texts, both with the chart's values and helpers."""
    rendered = render(OPTIONS["more objects"])
    found = rendered.one("ConfigMap", "frd-more")
    assert found["data"] == {"service": "frd.frd.svc:9373"}
    assert found["metadata"]["namespace"] == "frd"
    assert labels(rendered.one("ConfigMap", "frd-text"))["app.kubernetes.io/component"] == "more"


def test_the_policy_allows_only_what_is_configured() -> None:
    """DNS out, gRPC and HTTP in from pods, and nothing else; with a webhook also port 443 out, and
    its Secret is a volume of the pod."""
    spec = render().one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["ports"][0]["port"] for rule in spec["ingress"]] == ["grpc", "http"]
    assert all(rule["from"] == [{"namespaceSelector": {}}] for rule in spec["ingress"])
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {53}
    rendered = render(OPTIONS["webhook"])
    spec = rendered.one("NetworkPolicy")["spec"]
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {53, 443}
    (mounted,) = [v for v in rendered.pod()["volumes"] if v["name"] == "notify"]
    assert mounted["secret"]["secretName"] == "chat"


def selects(selector: dict[str, str], thing: Object) -> bool:
    return selector.items() <= labels(thing).items()


def test_selectors_select_the_right_pods_only() -> None:
    """Service, budget and policies select the service's pod; those of agents select agents."""
    rendered = render(EVERYTHING)
    service = rendered.one("StatefulSet")["spec"]["template"]
    agent = rendered.one("DaemonSet")["spec"]["template"]
    others = rendered.of("Pod")
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy", "StatefulSet", "DaemonSet"):
        for thing in rendered.of(kind):
            spec = thing["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            selector = selector.get("matchLabels", selector)
            own = agent if labels(thing)["app.kubernetes.io/component"] == "agent" else service
            assert selects(selector, own), thing
            for other in (service, agent, *others):
                assert other is own or not selects(selector, other), thing


def test_the_ingress_leads_to_http() -> None:
    """Every host leads, for all paths, to the HTTP port of the Service."""
    rendered = render(OPTIONS["ingress"])
    spec = rendered.one("Ingress")["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["frd.example", "frd.team.example"]
    for rule in spec["rules"]:
        (path,) = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/", "Prefix")
        backend = path["backend"]["service"]
        service = rendered.one("Service", backend["name"])["spec"]
        assert {"name": "http", "port": 9374}.items() <= {
            key: value
            for port in service["ports"]
            if port["name"] == backend["port"]["name"]
            for key, value in port.items()
        }.items()
    assert "https://frd.example" in rendered.notes
    assert "your Ingress controller must use HTTPS" in rendered.notes


def test_the_notes_lead_to_the_page() -> None:
    """They have its address and, with tokens, how to read one; without an Ingress also the command
    that forwards its port. Without the page they have none of it. They warn of tokens in plain
    text, or no tokens at all, behind an address outside the cluster."""
    token, forward = "jsonpath={.data.reader}", "port-forward service/frd 9374"
    shown = render().notes
    assert "https://frd.frd.svc:9374/\n" in shown
    assert "open https://localhost:9374/ during\n" in shown
    assert forward in shown
    assert f"get secret frd-tokens --output '{token}'" in shown
    assert "reader" in render().one("Secret", "frd-tokens")["data"]
    outside = render(OPTIONS["ingress"]).notes
    assert "findings: https://frd.example/\n" in outside
    assert forward not in outside
    insecure = render({"insecure": True}).notes
    assert "open http://localhost:9374/ during\n" in insecure
    assert token not in insecure
    off = render({"config": {"web": False}}).notes
    assert not [words for words in ("page", token, forward) if words in off]
    plain = render(OPTIONS["ingress of the default class"]).notes
    assert "http://frd.example" in plain
    assert "WITHOUT TLS" in plain
    insecure = render(merged(OPTIONS["ingress"], {"insecure": True})).notes
    assert "configure authentication in your Ingress controller" in insecure
    assert "WITHOUT TLS" not in insecure


def added(pod: Object, container: Object) -> Values:
    """The parts of EXTRAS that a container has, by the names of the values."""
    extras = (("extraEnv", "env"), ("extraArgs", "command"), ("extraVolumeMounts", "volumeMounts"))
    found = {
        value: [given for given in EXTRAS[value] if given in container[key]]
        for value, key in extras
    }
    return found | {"extraVolumes": [v for v in EXTRAS["extraVolumes"] if v in pod["volumes"]]}


def test_extras_are_in_the_right_container() -> None:
    """Those of the service are its own; the agent's are in the sidecar and in the DaemonSet."""
    pod = render(OPTIONS["extras"]).pod()
    assert added(pod, pod["containers"][0]) == EXTRAS
    pod = recipe(OPTIONS["extras of the sidecar"])
    assert added(pod, pod["initContainers"][1]) == EXTRAS
    rendered = render(OPTIONS["extras of the daemonset"])
    pod = rendered.pod("DaemonSet")
    assert added(pod, pod["containers"][0]) == EXTRAS
    pod = rendered.pod()
    assert not any(added(pod, pod["containers"][0]).values())


def test_ports_agree_wherever_they_are_named() -> None:
    """Services, policies and monitors name ports that the pods have; only one of the two Services
    has the port that the monitor scrapes, so the service is found once."""
    rendered = render(EVERYTHING)
    spec = rendered.pod()
    agent = rendered.pod("DaemonSet")
    (container,), (agents,) = spec["containers"], agent["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"grpc": 19373, "http": 9374}
    assert {p["targetPort"] for s in rendered.of("Service") for p in s["spec"]["ports"]} <= set(
        ports
    )
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    monitor = rendered.one("ServiceMonitor")["spec"]
    assert {found["port"] for found in monitor["endpoints"]} == {"http"}
    chosen = [s for s in rendered.of("Service") if selects(monitor["selector"]["matchLabels"], s)]
    assert len([p for s in chosen for p in s["spec"]["ports"] if p["name"] == "http"]) == 1
    (found,) = rendered.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert [p["name"] for p in agents["ports"]] == [found["port"]]


ON_NODES_AND_ZONES = {
    "kubernetes.io/hostname": "DoNotSchedule",
    "topology.kubernetes.io/zone": "ScheduleAnyway",
}


def test_replicas_are_apart_and_leave_one_at_a_time() -> None:
    """Three replicas start together on different nodes, and a drained node takes one of them;
    constraints and a budget that the values give replace these. Without a cluster they are refused:
    each would watch a part of every job."""
    rendered = render(OPTIONS["cluster"])
    service = rendered.one("StatefulSet")["spec"]
    assert (service["replicas"], service["podManagementPolicy"]) == (3, "Parallel")
    spread = rendered.pod()["topologySpreadConstraints"]
    assert {s["topologyKey"]: s["whenUnsatisfiable"] for s in spread} == ON_NODES_AND_ZONES
    for constraint in spread:
        assert selects(constraint["labelSelector"]["matchLabels"], service["template"])
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    own = {"enabled": True, "maxUnavailable": 2}
    given = {"topologySpreadConstraints": [SPREAD], "podDisruptionBudget": own}
    rendered = render(OPTIONS["cluster"] | given)
    assert rendered.pod()["topologySpreadConstraints"] == [SPREAD]
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 2
    with pytest.raises(helm.HelmRenderError, match=r"replicas: 3: .* config\.cluster\.servers"):
        render({"replicas": 3})


def test_one_replica_is_as_it_was() -> None:
    """An upgrade of a single service changes no field that Kubernetes refuses to change, and asks
    for no cluster."""
    rendered = render()
    service = rendered.one("StatefulSet")["spec"]
    assert service["replicas"] == 1
    assert not {"podManagementPolicy", "minReadySeconds"} & set(service)
    assert not rendered.of("PodDisruptionBudget")
    assert not [e for e in rendered.pod()["containers"][0]["env"] if "CLUSTER" in e["name"]]
    assert "topologySpreadConstraints" not in rendered.pod()


def test_only_replicas_reach_nats_and_each_other() -> None:
    """The policy opens the NATS port for the service's pods, not for agents, and lets replicas ask
    each other although clients of HTTP are limited."""
    limited = {"http": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]}
    values = merged(OPTIONS["cluster"], OPTIONS["daemonset"], {"networkPolicy": limited})
    rendered = render(values)
    service = rendered.one("NetworkPolicy", "frd")["spec"]
    mine = {"podSelector": {"matchLabels": service["podSelector"]["matchLabels"]}}
    nats = {"ports": [{"port": 4222, "protocol": "TCP"}]}
    assert nats in service["egress"]
    assert {"to": [mine], "ports": [{"port": "http"}]} in service["egress"]
    assert mine in service["ingress"][1]["from"]
    agents = rendered.one("NetworkPolicy", "frd-agent")["spec"]
    assert "4222" not in str(agents)
    assert nats not in render().one("NetworkPolicy")["spec"]["egress"]


def test_two_releases_share_nothing() -> None:
    """In one namespace their objects have different names, and no selector selects both."""
    given = {key: v for key, v in EVERYTHING.items() if key not in ("fullnameOverride", "tls")}
    one, two = (render(given | {"auth": {}}, name=name) for name in ("one", "two"))
    names = [{(o["kind"], o["metadata"]["name"]) for o in r.objects} for r in (one, two)]
    assert not names[0] & names[1]
    for mine, other in itertools.permutations((one, two)):
        selector = mine.one("StatefulSet")["spec"]["selector"]["matchLabels"]
        assert not selects(selector, other.one("StatefulSet")["spec"]["template"])


def test_a_changed_configuration_restarts_the_service() -> None:
    """The pod's checksum changes with the configuration only."""

    def checksum(values: Values) -> str:
        template = render(values).one("StatefulSet")["spec"]["template"]
        found: str = template["metadata"]["annotations"]["checksum/config"]
        return found

    assert checksum({}) == checksum({"resources": {}})
    assert checksum({}) != checksum({"config": {"log": {"level": "debug"}}})


def test_the_volume_holds_what_the_service_may_store() -> None:
    """The default size leaves room above the bounds of journal and dumps."""
    from frd.config.settings import StoreLimits

    limits = StoreLimits()
    (claim,) = render().one("StatefulSet")["spec"]["volumeClaimTemplates"]
    size = claim["spec"]["resources"]["requests"]["storage"]
    gib = int(size.removesuffix("Gi"))
    assert gib * 2**30 > 2 * (limits.journal_bytes + limits.dump_bytes)
