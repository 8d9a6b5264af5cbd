"""The operator's rights, word for word. A change here is a change of what an administrator grants: say so in the chart's README."""

import pytest

from chart_render import NAMESPACE, find, installed, of_test, operator_arguments, render

HOME = NAMESPACE
IN_A_WATCHED_NAMESPACE = {
    ("ddpjob.dev", "ddpjobs", ("delete", "get", "list", "watch")),
    ("ddpjob.dev", "ddpjobs/status", ("patch",)),
    ("ddpjob.dev", "ddpjobs/finalizers", ("update",)),
    ("", "pods", ("create", "delete", "deletecollection", "get", "list", "patch", "watch")),
    ("", "pods/log", ("get",)),
    ("", "services", ("create", "get", "list", "patch", "watch")),
    ("", "events", ("create", "list", "patch")),
}
ON_NODES = {("", "nodes", ("get",))}
ON_THE_LEASE = {
    ("coordination.k8s.io", "leases", ("create",)),
    ("coordination.k8s.io", "leases/ddpjob-operator by name", ("get", "patch", "watch")),
}


def rules(role):
    flat = [
        (group, f"{resource}/{name} by name" if name else resource, tuple(sorted(rule["verbs"])))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    ]
    assert all(rule.keys() - {"resourceNames"} == {"apiGroups", "resources", "verbs"} for rule in role["rules"])
    assert len(flat) == len(set(flat))
    return set(flat)


def granted(objects, account):
    """What the account may do: {namespace, or None for the whole cluster: rules}."""
    roles = {
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]): item
        for item in objects
        if item["kind"] in ("Role", "ClusterRole")
    }
    rights = {}
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ddpjob-system"}]
        namespace = binding["metadata"].get("namespace")
        role = binding["roleRef"]
        assert role["apiGroup"] == "rbac.authorization.k8s.io"
        where = namespace if role["kind"] == "Role" else None
        rights.setdefault(namespace, set()).update(rules(roles[role["kind"], where, role["name"]]))
    return rights


@pytest.mark.parametrize(
    ("namespaces", "nodes", "expected"),
    [
        ([], True, {None: IN_A_WATCHED_NAMESPACE | ON_NODES, HOME: ON_THE_LEASE}),
        ([], False, {None: IN_A_WATCHED_NAMESPACE, HOME: ON_THE_LEASE}),
        (["team-a"], True, {"team-a": IN_A_WATCHED_NAMESPACE, None: ON_NODES, HOME: ON_THE_LEASE}),
        (
            ["team-a", HOME],
            False,
            {"team-a": IN_A_WATCHED_NAMESPACE, HOME: IN_A_WATCHED_NAMESPACE | ON_THE_LEASE},
        ),
    ],
)
def test_rights_and_arguments_follow_from_the_one_scope_setting(namespaces, nodes, expected):
    values = {"watch": {"namespaces": namespaces}, "rbac": {"nodes": nodes}}
    assert granted(installed(render(values)), "ddpjob-operator") == expected
    watched = [argument for argument in operator_arguments(values) if argument.startswith("--namespace")]
    assert watched == [f"--namespace={namespace}" for namespace in namespaces]


def test_roles_for_users():
    objects = render()
    view = find(objects, "ClusterRole", "ddpjob-operator-view")
    edit = find(objects, "ClusterRole", "ddpjob-operator-edit")
    assert rules(view) == {("ddpjob.dev", "ddpjobs", ("get", "list", "watch"))}
    assert rules(edit) == {("ddpjob.dev", "ddpjobs", ("create", "delete", "deletecollection", "patch", "update"))}


@pytest.mark.parametrize(
    ("namespaces", "job_namespace"),
    [([], "ddpjob-system"), (["team-a", "ddpjob-system"], "ddpjob-system"), (["team-a", "team-b"], "team-a")],
)
def test_the_test_may_create_read_and_delete_jobs_where_the_operator_watches(namespaces, job_namespace):
    objects = of_test(render({"watch": {"namespaces": namespaces}}))
    assert granted(objects, "ddpjob-operator-test") == {
        job_namespace: {("ddpjob.dev", "ddpjobs", ("create", "delete", "get"))}
    }
    pod = find(objects, "Pod")
    assert pod["spec"]["serviceAccountName"] == "ddpjob-operator-test"
    assert pod["metadata"]["namespace"] == "ddpjob-system"
