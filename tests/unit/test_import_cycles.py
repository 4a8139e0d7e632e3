"""Structure of the packages: no import cycles, those of lazy and type-checking imports included, and small folders."""

import grimp
import networkx as nx
import pytest


@pytest.mark.parametrize("package", ["ddp_trainer ddp_preflight", "kubectl_ddp ddp_report"])
def test_modules_form_no_import_cycle(package: str) -> None:
    graph = grimp.build_graph(*package.split(), cache_dir=None)
    modules = nx.DiGraph(
        (each, other) for each in graph.modules for other in graph.find_modules_directly_imported_by(each)
    )
    assert modules.number_of_edges() > 1000
    assert [sorted(part) for part in nx.strongly_connected_components(modules) if len(part) > 1] == []


@pytest.mark.parametrize("package", ["ddp_trainer ddp_preflight", "kubectl_ddp ddp_report"])
def test_no_folder_has_more_than_25_modules(package: str) -> None:
    graph = grimp.build_graph(*package.split(), cache_dir=None)
    assert [each for each in graph.modules if len(graph.find_children(each)) > 25] == []
