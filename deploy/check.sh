#!/usr/bin/env bash
# Render both examples for every target and hold them against the schemas of what takes them:
# deploy/check.sh, in a checkout. PYTHON is one that can import the project. Needs kubectl, npm and a
# package index; the tools go into build/, not into the project's environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
tools=build/deploy-tools
rendered=build/deploy-rendered

checkov=build/checkov  # it pins much of what it needs, so it is alone
if ! "$tools/bin/python" -c 'import kubernetes_validate, cloudcoil.models.cert_manager' 2> /dev/null; then
    python3 -m venv "$tools"
    "$tools/bin/pip" --disable-pip-version-check install -q \
        kubernetes-validate==1.37.0 python-hcl2==8.1.4 jsonschema pyyaml cloudcoil-models-cert-manager==1.17.1.0
fi
if [ ! -x "$checkov/bin/checkov" ]; then
    python3 -m venv "$checkov"
    "$checkov/bin/pip" --disable-pip-version-check install -q checkov==3.3.30
fi
if [ ! -d "$tools/dclint" ]; then  # it carries the schema of the compose specification
    mkdir -p "$tools/dclint"
    npm pack --silent --pack-destination "$tools" dclint@3.1.0 > /dev/null
    tar -xzf "$tools/dclint-3.1.0.tgz" -C "$tools/dclint" --strip-components 1
fi

rm -rf "$rendered"
for overlay in one-node cluster; do  # with every component
    folder="$rendered/components-$overlay"
    mkdir -p "$folder"
    components=(../../../deploy/k8s/components/{studio,backup,cert-manager,autoscale})
    printf 'resources: [../../../deploy/k8s/overlays/%s]\ncomponents: [%s]\n' \
        "$overlay" "$(IFS=,; echo "${components[*]}")" > "$folder/kustomization.yaml"
    kubectl kustomize "$folder" > "$folder.yaml"
    for version in 1.31 1.37; do
        "$tools/bin/kubernetes-validate" --strict --quiet -k "$version" "$folder.yaml" | { grep -v cert-manager.io || true; }
    done
    "$tools/bin/python" deploy/check.py certificates "$folder.yaml"
    echo "$folder: $(grep -c '^kind: ' "$folder.yaml") objects, valid for Kubernetes 1.31 and 1.37"
done
for example in addition gsm8k; do
    config="examples/$example/$example.yaml"
    for target in compose nomad; do
        "$python" -m trinity.cli.main deploy render --config "$config" --target "$target" \
            --output "$rendered/$example-$target" > /dev/null
    done
    for overlay in one-node cluster; do
        folder="$rendered/$example-$overlay"
        "$python" -m trinity.cli.main deploy render --config "$config" --target k8s \
            --overlay "$overlay" --output "$folder" > /dev/null
        kubectl kustomize "$folder" > "$folder.yaml"
        for version in 1.31 1.37; do
            "$tools/bin/kubernetes-validate" --strict --quiet -k "$version" "$folder.yaml"
        done
        echo "$folder: $(grep -c '^kind: ' "$folder.yaml") objects, valid for Kubernetes 1.31 and 1.37"
    done
    "$tools/bin/python" deploy/check.py "$tools/dclint/schemas/compose.schema.json" \
        "$rendered/$example-compose" "$rendered/$example-nomad"
done
gang=(cluster.node_num=4 cluster.gpu_per_node=8 explorer.rollout_model.engine_num=8)  # engines, three machines of ranks
for target in k8s nomad; do
    folder="$rendered/gang-$target"
    "$python" -m trinity.cli.main deploy render --config examples/gsm8k/gsm8k.yaml --target "$target" \
        --overlay cluster --output "$folder" "${gang[@]}" > /dev/null
done
engine=(cluster.node_num=3 cluster.gpu_per_node=8 explorer.rollout_model.tensor_parallel_size=16)  # on two machines
for target in k8s nomad; do
    folder="$rendered/engine-$target"
    "$python" -m trinity.cli.main deploy render --config examples/gsm8k/gsm8k.yaml --target "$target" \
        --overlay cluster --output "$folder" "${engine[@]}" > /dev/null
done
for wide in gang engine; do
    kubectl kustomize "$rendered/$wide-k8s" > "$rendered/$wide-k8s.yaml"
    for version in 1.31 1.37; do
        "$tools/bin/kubernetes-validate" --strict --quiet -k "$version" "$rendered/$wide-k8s.yaml"
    done
    echo "$rendered/$wide-k8s: $(grep -c '^kind: ' "$rendered/$wide-k8s.yaml") objects, valid for Kubernetes 1.31 and 1.37"
    "$tools/bin/python" deploy/check.py "$tools/dclint/schemas/compose.schema.json" \
        "$rendered/gsm8k-compose" "$rendered/$wide-nomad"
done
"$checkov/bin/checkov" --framework kubernetes --compact --quiet --skip-download \
    $(printf -- '--file %s ' "$rendered"/*.yaml) | grep -v '^$'
if command -v promtool > /dev/null; then  # of Debian's package `prometheus`
    promtool check rules deploy/observability/alerts.yaml
    promtool test rules tests/unit/deploy/alert_cases.yaml
else
    echo "promtool is not installed: the alert rules were not checked" >&2
fi
