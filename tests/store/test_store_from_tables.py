"""from_tables: nodes by key, edges by foreign key, from Parquet, Arrow and CSV."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import gnndrive
from gnndrive import ConfigError, NeighborLoader
from tests.store.conftest import edges_of, refused

DAY = 86_400_000_000_000  # ns
USERS: dict[str, Any] = {
    "id": ["u7", "ü", "7", "u3"],
    "age": [30, None, 50, 20],
    "f1": pa.array([0.5, 1.5, 2.5, 3.5], pa.float32()),
    "f2": [True, False, True, True],
    "city": ["Ulm", None, "Bern", "Ulm"],
    "signup": pa.array([1, 2, 3, 4], pa.date32()),
    "churned": ["no", "yes", None, "no"],
    "fold": ["train", "val", "train", None],
}
ITEMS: dict[str, Any] = {"sku": [30, 10, 20], "price €": [3.5, 1.0, 2.25]}
ORDERS: dict[str, Any] = {
    "user": ["7", "u7", "ü", "7", "u3"],
    "sku": [10, 30, 20, 10, 30],
    "ts": pa.array([5, 4, 3, 2, 1], pa.timestamp("s")),
    "stars": pa.array([5, 4, 3, 2, 1], pa.int8()),
}
ENDS = [[2, 0, 1, 2, 3], [1, 0, 2, 1, 0]]
FAR = pa.array([0, 253_402_300_799], pa.timestamp("s"))  # the year 9999
SHOP = ("user", "buys", "item")


def put(folder: Path, suffix: str = ".parquet", **tables: dict[str, Any]) -> dict[str, str]:
    """Write tables; return their paths by name."""
    write = {".parquet": pq.write_table, ".arrow": feather.write_feather, ".csv": pacsv.write_csv}
    paths = {name: str(folder / f"{name}{suffix}") for name in tables}
    for name, columns in tables.items():
        write[suffix](pa.table(columns), paths[name])
    return paths


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_a_shop(tmp_path, suffix):
    at = put(tmp_path, suffix, users=USERS, items=ITEMS, orders=ORDERS)
    store = gnndrive.from_tables(
        tmp_path / "shop.gnn",
        nodes={"user": f"{at['users']}:id", "item": f"{at['items']}:sku"},
        edges={SHOP: f"{at['orders']}:user,sku"},
        x=["f1", "user.f2", "price*"], labels="churned", time="ts", splits="fold",
    )  # fmt: skip
    user, item, buys = store["user"], store["item"], store[SHOP]
    assert edges_of(buys).tolist() == ENDS
    assert user.x.tolist() == [[0.5, 1], [1.5, 0], [2.5, 1], [3.5, 1]]
    assert item.x.tolist() == [[3.5], [1], [2.25]]
    np.testing.assert_array_equal(user.age, [30, np.nan, 50, 20])
    assert (user.city.tolist(), user.city_categories) == ([1, -1, 0, 1], ["Bern", "Ulm"])
    assert user.signup.tolist() == [DAY, 2 * DAY, 3 * DAY, 4 * DAY]
    assert (user.y.tolist(), user.classes) == ([0, 1, -1, 0], ("no", "yes"))
    assert [user.split(name).tolist() for name in ("train", "val")] == [[0, 2], [1]]
    assert user.split_names == ("train", "val")
    assert buys.time.tolist() == [n * 10**9 for n in (5, 4, 3, 2, 1)]
    assert buys.stars.tolist() == [5, 4, 3, 2, 1]
    assert set(user.names) == {"id", "x", "y", "age", "city", "signup"}
    store.verify()


def test_ids_and_indices(tmp_path):
    at = put(tmp_path, users=USERS, items=ITEMS, orders=ORDERS)
    store = gnndrive.from_tables(
        tmp_path / "shop.gnn",
        nodes={"user": f"{at['users']}:id", "item": f"{at['items']}:sku"},
        edges={"user,buys,item": f"{at['orders']}:user,sku"},
    )  # fmt: skip
    assert store.ids("user").tolist() == USERS["id"]
    assert store.ids("item", np.array([2, 0])).tolist() == [20, 30]
    assert store.index_of(["7", "ü", "7"], "user").tolist() == [2, 1, 2]
    assert store.index_of(np.array([10, 30]), "item").tolist() == [1, 0]
    assert store.index_of([], "item").tolist() == []
    for ids, type, kind in (
        ([8], "user", "text"), ([-1], "item", "whole"), (["10"], "item", "whole"),
        ([10.0], "item", "whole"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"has the id {ids[0]!r}: its ids are {kind}"):
            store.index_of(ids, type)
    assert store.ids("item", []).tolist() == []
    assert store.ids("item", [True, False, True]).tolist() == [30, 20]
    for wrong in ([0, 3], [-1], [0.5], ["7"], [True]):
        with pytest.raises(ConfigError, match=f"{wrong[-1]!r} is no index of a node .* 3 nodes"):
            store.ids("item", wrong)
    (tmp_path / "none.csv").write_text("0,1\n1,0\n")
    plain = gnndrive.from_edges(tmp_path / "none.csv", tmp_path / "plain.gnn")
    assert plain.ids(n_id=[1, 0]).tolist() == plain.index_of([1, 0]).tolist() == [1, 0]
    with pytest.raises(ConfigError, match="give the nodes as"):
        plain.ids(np.array([1, 0]))
    with pytest.raises(ConfigError, match="has the id 2"):
        plain.index_of([1, 2])


def test_one_type_whose_rows_are_numbered_or_that_has_no_table(tmp_path):
    at = put(
        tmp_path, n={"emb": [[1, 2], [3, 4], [5, 6]], "w": [1, 2, 3]}, e={"s": [2, 0], "t": [1, 2]}
    )
    store = gnndrive.from_tables(tmp_path / "rows", nodes=at["n"], edges=at["e"], undirected=True)
    assert edges_of(store).tolist() == [[2, 1, 0, 2], [1, 2, 2, 0]]
    assert store.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert store.node_names == ("w", "x")
    at = put(tmp_path, e={"s": ["c", "a"], "t": ["b", "c"], "w": [1, 2]})
    store = gnndrive.from_tables(tmp_path / "none", edges=at["e"])
    assert edges_of(store).tolist() == [[2, 0], [1, 2]]
    assert store.ids().tolist() == ["a", "b", "c"]
    assert store.w.tolist() == [1, 2]


def test_reverse_edges_and_a_table_of_nodes_and_edges(tmp_path):
    orders = {"order": [5, 6, 7], "user": [2, 1, 2], "w": [0.5, 1.5, 2.5], "v": [1, 2, 3]}
    at = put(tmp_path, orders=orders)["orders"]
    store = gnndrive.from_tables(
        tmp_path / "g.gnn", nodes={"order": f"{at}:order"}, columns=["w", "order.v"],
        edges={"user,places,order": f"{at}:user,order"}, undirected=True,
    )  # fmt: skip
    assert edges_of(store["places"]).tolist() == [[1, 0, 1], [0, 1, 2]]
    assert edges_of(store["order", "rev_places", "user"]).tolist() == [[0, 1, 2], [1, 0, 1]]
    assert store["rev_places"].w.tolist() == store["order"].w.tolist() == orders["w"]
    assert store.ids("user").tolist() == [1, 2]
    assert (store["places"].names, store["order"].names) == (("w",), ("id", "w", "v"))
    store = gnndrive.from_tables(
        tmp_path / "h",
        nodes={"order": f"{at}:order"},
        edges={"user,places,order": f"{at}:user,order"},
    )
    assert (store["places"].names, store["order"].names) == ((), ("id", "w", "v"))


def test_a_type_with_a_name_like_that_of_a_table(tmp_path):
    at = put(tmp_path, n={"k": [1, 2]}, e={"s": [1], "t": [2]})
    given: dict[str, Any] = {"nodes": {"user": f"{at['n']}:k"}, "if_exists": "replace"}
    match = r"'usr', which has no table \(did you mean user\?\)"
    with pytest.warns(UserWarning, match=match):
        gnndrive.from_tables(tmp_path / "g.gnn", edges={"usr,likes,user": at["e"]}, **given)
    gnndrive.from_tables(tmp_path / "g.gnn", edges={"user,rates,movie": at["e"]}, **given)


def test_several_files_and_folders(tmp_path):
    for name, part in (("a", slice(0, 2)), ("b", slice(2, 4))):
        (tmp_path / "users").mkdir(exist_ok=True)
        columns = {key: pa.array(values)[part] for key, values in USERS.items()}
        put(tmp_path / "users", **{name: columns})
    (tmp_path / "users" / "_SUCCESS").touch()
    at = put(tmp_path, e={"s": ["u3"], "t": ["7"]})
    files = [f"{tmp_path}/users/a.parquet:id", f"{tmp_path}/users/b.parquet"]
    with refused(tmp_path, "users/a.parquet, row 2 has no value in column 'age'"):
        gnndrive.from_tables(tmp_path / "g", nodes=files, edges=at["e"], x="age")
    for number, nodes in enumerate((f"{tmp_path}/users:id", files)):
        store = gnndrive.from_tables(tmp_path / str(number), nodes=nodes, edges=at["e"])
        assert edges_of(store).tolist() == [[3], [2]]
        assert store.ids().tolist() == USERS["id"]


def test_names_of_columns_that_sql_or_a_store_has_too(tmp_path):
    """A folder such as age=5 gives no column, and no name of a column is taken for another."""
    folder = tmp_path / "age=5"
    folder.mkdir()
    columns = {
        "row": [2, 1, 0], "name": ["ann", None, "cy"], "country": ["de", "fr", "in"],
        "fold": ["train", "val", "val"], "id": [7, 7, 7], "n_id": [1, 2, 3], "a b": [1, 2, 3],
        "a,b": [4, 5, 6], "年": [1, 1, 1], "齢": [2, 2, 2], "y": [[1], [2], [3]], "at": [0, 1, 2],
    }  # fmt: skip
    at = put(folder, n={"place": ["a", "b", "c"], **columns}, e={"s": ["a", "b"], "t": ["c", "a"]})
    store = gnndrive.from_tables(
        tmp_path / "g.gnn", nodes=f"{at['n']}:place", edges=at["e"], splits="fold"
    )
    assert edges_of(store).tolist() == [[0, 1], [2, 0]]
    assert [store.split(name).tolist() for name in ("train", "val")] == [[0], [1, 2]]
    assert (store.country.tolist(), store.name.tolist()) == ([0, 1, 2], [0, -1, 1])
    assert store.ids().tolist() == ["a", "b", "c"]
    assert set(store.node_names) == {
        "id", "y", "row", "name", "country", "id_2", "n_id_2", "a_b", "a_b_2", "_", "__2", "at",
    }  # fmt: skip
    assert store.y.tolist() == [1, 2, 3]
    split = gnndrive.store.importers.RandomSplit(1, 0, 0)
    store = gnndrive.from_tables(
        tmp_path / "h.gnn", nodes=f"{at['n']}:place", edges=at["e"], splits=split, x="a*"
    )
    assert store.split("train").tolist() == [0, 1, 2]
    assert store.x.tolist() == [[1, 4, 0], [2, 5, 1], [3, 6, 2]]


def test_text_files_of_one_table(tmp_path):
    """Each has a header, with any order of columns; or only the first one, as `split` leaves it."""
    a, b, c = (tmp_path / f"{name}.csv" for name in "abc")
    a.write_text("id,age,income\n1,30,1000\n")
    b.write_text("income,id,age\n3000,3,50\n")
    c.write_text("carl,z\n")
    e = put(tmp_path, e={"s": [1], "t": [3]})["e"]
    store = gnndrive.from_tables(tmp_path / "g", nodes=[f"{a}:id", b], edges=e)
    assert (store.age.tolist(), store.income.tolist()) == ([30, 50], [1000, 3000])
    a.write_text("id,kind\nanna,x\n")
    e = put(tmp_path, e={"s": ["anna"], "t": ["carl"]})["e"]
    store = gnndrive.from_tables(tmp_path / "h", nodes=[f"{a}:id", c], edges=e)
    assert store.ids().tolist() == ["anna", "carl"]
    with refused(tmp_path, "is .* the first edge, or the columns' names. Give header="):
        gnndrive.from_tables(tmp_path / "i", edges=c)
    assert gnndrive.from_tables(tmp_path / "i", edges=c, header=False).num_edges == 1


def test_numbers_that_no_float_holds(tmp_path):
    large = 2**53 + 1
    at = put(tmp_path, n={"k": [1, 2], "a": [large, None], "t": FAR}, e={"s": [1], "t": [2]})
    with pytest.warns(UserWarning, match=r"'a' of .* above 2\*\*53.*; 't' of .*2262") as told:
        store = gnndrive.from_tables(tmp_path / "g", nodes=f"{at['n']}:k", edges=at["e"])
    assert (store.node_names, len(told)) == (("id",), 1)
    (tmp_path / "n.csv").write_text(f"k,a\n1,{2**64 - 1}\n2,5\n")
    store = gnndrive.from_tables(tmp_path / "h", nodes=f"{tmp_path}/n.csv:k", edges=at["e"])
    assert store.a.tolist() == [2**64 - 1, 5]
    mixed = {"s": pa.array([1, 2]), "t": pa.array([2, 3], pa.uint64())}
    store = gnndrive.from_tables(tmp_path / "i", edges=put(tmp_path, m=mixed)["m"])
    assert store.ids().tolist() == [1, 2, 3]


def test_keys_of_any_type_are_compared_as_what_they_mean(tmp_path):
    whole: Any
    for number, (key, end, expected) in enumerate(
        (
            (pa.array([3, 1], pa.int8()), [1.0, 3.0], [1, 0]),
            (["3", "1"], pa.array([1, 3], pa.uint64()), [1, 0]),
            (*[pa.array(each, pa.uint64()) for each in ([3, 2**63 + 1], [2**63 + 1, 3])], [1, 0]),
            (pa.array([1, 2], pa.timestamp("s")), ["1970-01-01 00:00:02"] * 2, [1, 1]),
            ([True, False], ["false", "true"], [1, 0]),
        )
    ):
        at = put(tmp_path, n={"k": key}, e={"s": end, "t": end})
        store = gnndrive.from_tables(tmp_path / f"{number}", nodes=f"{at['n']}:k", edges=at["e"])
        assert edges_of(store)[0].tolist() == expected
    (tmp_path / "n.csv").write_text("k\n007\n7\n")
    whole = put(tmp_path, e={"s": [7], "t": [7]})["e"]
    store = gnndrive.from_tables(tmp_path / "t", nodes=f"{tmp_path}/n.csv:k", edges=whole)
    assert edges_of(store).tolist() == [[1], [1]]


def test_splits_by_time_and_at_random(tmp_path):
    at = put(tmp_path, users=USERS, e={"s": ["u7"], "t": ["u3"]})
    given: dict[str, Any] = {"nodes": f"{at['users']}:id", "edges": at["e"], "if_exists": "replace"}
    path = tmp_path / "g.gnn"
    store = gnndrive.from_tables(path, splits=("signup", "1970-01-03", "1970-01-05"), **given)
    parts = {name: store.split(name).tolist() for name in store.split_names}
    assert parts == {"train": [0], "val": [1, 2], "test": [3]}
    assert store.signup[0] == DAY
    store = gnndrive.from_tables(path, splits=("age", "30"), **given)
    parts = {name: store.split(name).tolist() for name in store.split_names}
    assert parts == {"train": [3], "test": [0, 2]}
    split = gnndrive.store.importers.RandomSplit(1, 0, 0)
    store = gnndrive.from_tables(path, splits=split, labels="churned", **given)
    assert store.split("train").tolist() == [0, 1, 3]


def test_a_temporal_loader_gives_what_was_there_at_the_seeds_time(tmp_path):
    at = put(tmp_path, users=USERS, items=ITEMS, orders=ORDERS)
    store = gnndrive.from_tables(
        tmp_path / "shop.gnn",
        nodes={"user": f"{at['users']}:id", "item": f"{at['items']}:sku"},
        edges={SHOP: f"{at['orders']}:user,sku"}, time="ts", undirected=True,
    )  # fmt: skip
    loader = NeighborLoader(
        store, [-1, -1], ("item", None), input_time=np.full(3, 3 * 10**9), batch_size=3,
        time_attr="time", memory="100MB",
    )  # fmt: skip
    (batch,) = loader
    assert batch[SHOP].time.max() == 3 * 10**9
    assert sorted(store.ids("user", batch["user"].n_id).tolist()) == ["7", "u3", "ü"]


def test_tables_that_are_wrong(tmp_path):
    nodes = {"k": [1, 2], "x": [[1.0], [2.0]]}
    edges = {"s": [1, 2], "t": [2, 1]}
    for change, given, match in (
        ({"k": [1, 1]}, {}, r"n.parquet, row 2 has the key '1' of .*n.parquet, row 1, in column"),
        ({"k": [1, None]}, {}, "n.parquet, row 2 has no value in the key 'k'"),
        ({"k": [1, 1.5]}, {}, "n.parquet, row 2 has 1.5 in column 'k', which is DOUBLE"),
        ({"k": [[1], [2]]}, {}, r"'k' of .*n.parquet is BIGINT\[\]: a key is a number or a text"),
        ({"x": [[1.0], [2.0, 3.0]]}, {}, "row 2 has 2 values in column 'x', and row 1 has 1"),
        ({"x": [[1.0], None]}, {}, "n.parquet, row 2 has no value in column 'x'"),
        ({"x": [[1.0], [None]]}, {}, "n.parquet, row 2 has no value in column 'x'"),
        ({"f": [1, None]}, {"x": ["x", "f"]}, "n.parquet, row 2 has no value in column 'f'"),
        ({"f": ["1", "a"]}, {"x": ["x", "f"]}, "'f' of .* is VARCHAR, and .*row 2 has 'a'"),
        ({"t": [1.5, 2]}, {"time": "t"}, "'t' of .* holds float64: give whole numbers, dates"),
        ({"t": [1, None]}, {"time": "t"}, "n.parquet, row 2 has no value in column 't'"),
        ({"t": FAR}, {"time": "t"}, "row 2 has a time in column 't' before 1677 or after 2262"),
        ({"K": [1, 2]}, {}, "n.parquet: the columns 'k' and 'K' have names that are equal but for"),
        ({"k": ["1", "1\0"]}, {}, r"the id '1\\x00' holds the character NUL"),
        ({}, {"x": "f*"}, r"x= 'f\*' is no column: .*n.parquet has 'k', 'x'"),
        ({}, {"labels": "item.xx"}, r"labels= 'item.xx' is no column \(did you mean x\?\): .*has"),
        ({}, {"splits": ("s", "2")}, r"splits= 's' is no column: .*split_links\(store, time=\)"),
        ({"a": [1, 2]}, {"labels": ["a", "k"]}, "labels= names several columns"),
        ({"f": pa.array([1, 2**63], pa.uint64())}, {"labels": "f"}, f"label {2**63}, which int64"),
        ({"f": [0.5, 1e300]}, {"labels": "f"}, r"a label 1e\+300, which float32 does not hold"),
        ({"f": [1, 2]}, {"splits": "f"}, "which is BIGINT, has no names of splits"),
        ({"f": [1, 2]}, {"splits": ("f", "b")}, "give one or two times of that type"),
        ({"f": [1, 2]}, {"splits": ("f", "2", "1")}, "two times of that type, in order"),
        ({}, {"splits": gnndrive.store.importers.RandomSplit()}, "there are none: give labels="),
    ):  # fmt: skip
        at = put(tmp_path, n={**nodes, **change}, e=edges)
        with refused(tmp_path, match):
            gnndrive.from_tables(
                tmp_path / "g", nodes=f"{at['n']}:k", edges=f"{at['e']}:s,t", **given
            )


def test_edges_and_files_that_are_wrong(tmp_path):
    at = put(
        tmp_path, n={"k": [1, 2]}, m={"f": [1.0, 2.0]}, e={"s": [1, 2], "t": [2, 3]}, o={"s": [1]}
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "inner").mkdir(parents=True)
    (tmp_path / "e.csv").write_text("s,t\n1,2\n2,1\n2\n")
    n, e = f"{at['n']}:k", at["e"]
    typed = {"nodes": {"a": n}, "edges": {"a,r,a": e}}
    for given, match in (
        ({"nodes": n, "edges": e}, "e.parquet, row 2 has '3' in column 't': no row of .*n.parquet"),
        ({"nodes": at["m"], "edges": e}, "has '2' in column 't': .*m.parquet has the rows 0 to 1"),
        ({"nodes": n, "edges": at["o"]}, "o.parquet has one column: edges need two"),
        ({"nodes": n, "edges": f"{e}:s"}, "names 1 columns: give the columns of the source and"),
        ({"nodes": n, "edges": f"{e}:s,u"}, "there is no column 'u'; there are 's', 't'"),
        ({"nodes": f"{n},k", "edges": e}, "names 2 columns: give one column"),
        ({"nodes": [n, f"{at['o']}:s"], "edges": e}, "another file of this table has the key k"),
        ({"nodes": n, "edges": []}, "has no files"),
        ({"nodes": f"{tmp_path}/no:k", "edges": e}, "no is missing: give a file that is there"),
        ({"nodes": f"{tmp_path}/empty:k", "edges": e}, "empty holds no file"),
        ({"nodes": n, "edges": {"a,r,a": e}}, "give both by type, or both without"),
        ({"nodes": [f"{at['m']}:f", f"{at['n']}:k"], "edges": e}, "another file of this table"),
        ({**typed, "edges": {"a,r,b": e, "b,rev_r,a": e}, "undirected": True}, "which is given"),
        ({"nodes": f"{tmp_path}/deep:k", "edges": e}, "deep/inner is a folder in that of a table"),
        ({**typed, "edges": {"a,r": e}}, r"the edge type 'a,r': give \(source, relation, target"),
        ({**typed, "edges": {"a/,r,a": e}}, "a type is called 'a/'"),
        ({"nodes": n, "edges": f"{tmp_path}/e.csv"}, "e.csv, line 4: number of fields 1, but"),
    ):  # fmt: skip
        with refused(tmp_path, match):
            gnndrive.from_tables(tmp_path / "g.gnn", **given)  # type: ignore[arg-type]
