"""The playground in a real browser: what a visitor does, and what comes of it.

One browser and one server, which take seconds to start, serve all of it: hence one file.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

import georoutenet as grn
from benchmarks.browser import CHROMIUM, chromium, playground
from georoutenet.cli import app
from georoutenet.examples import us_capitals
from georoutenet.problem.tour import check_tour, tour_length

pytest.importorskip("playwright", reason="the driver is missing: pip install 'georoutenet[browser]'")
if CHROMIUM is None:
    pytest.skip("there is no Chromium on the PATH", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

AXE = Path(__file__).parents[2] / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
EXPECTED = "Failed to load resource: the server responded with a status of 4"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that has loaded the network, so that short limits are enough."""
    asked = {"coordinates": [[0, 0], [0, 3], [4, 3], [4, 0], [2, 1]], "first": "network", "max_seconds": 10}
    body, kind = json.dumps(asked | {"improve": False}).encode(), {"Content-Type": "application/json"}
    with playground() as address:
        with urllib.request.urlopen(urllib.request.Request(f"{address}api/solve", body, kind)) as answer:
            assert json.load(answer)["method"].startswith("georoutenet")
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def until(page: Page, expression: str, seconds: float = 20.0) -> None:
    """Wait until it holds. Playwright's own way evaluates text, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never: {expression}"
        page.wait_for_timeout(20)


def opened(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(address)
    until(page, "window.playground?.store.problem.n > 0")
    return page


@pytest.fixture
def watched(browser: Browser, address: str) -> Iterator[BrowserContext]:
    """A context in which no page may fail, nor ask for anything from elsewhere."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True, has_touch=True)
    asked, errors = [], []
    context.on("request", lambda request: asked.append(request.url))
    context.on("weberror", lambda error: errors.append(str(error.error)))
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield context
    context.close()
    assert asked
    assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []
    assert [text for text in errors if not text.startswith(EXPECTED)] == []


@pytest.fixture
def page(watched: BrowserContext, address: str) -> Page:
    return opened(watched, address)


def state(page: Page, expression: str) -> Any:
    """What an expression over the page's own objects gives."""
    return page.evaluate(f"(() => {{ const p = window.playground; return {expression}; }})()")


def coordinates(page: Page) -> Any:
    return state(page, "p.store.problem.coordinates")


def wait_for_result(page: Page) -> None:
    until(page, "window.playground.panes[0].run?.result")


def frames(page: Page, pane: int = 0) -> list[dict[str, Any]]:
    return state(page, f"p.panes[{pane}].run.frames.map((each) => ({{...each, tour: [...each.tour]}}))")


def click_map(page: Page, *places: tuple[float, float]) -> None:
    for x, y in places:
        page.locator("#pane-a canvas").click(position={"x": x, "y": y})


def choose(page: Page, example: str) -> None:
    page.select_option("#example", example)
    until(page, f"window.playground.store.problem.example === '{example}'")


def drop(page: Page, name: str, text: str) -> None:
    """Let go of a file over the page."""
    data = page.evaluate_handle(
        """([name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name));
            return data;
        }""",
        [name, text],
    )
    for event in ("dragover", "drop"):
        page.dispatch_event("#stage", event, {"dataTransfer": data})


def test_five_clicked_cities_get_their_shortest_tour(page: Page) -> None:
    page.click("#clear")
    page.wait_for_selector("#hint:not([hidden])")
    click_map(page, (300, 150), (600, 160), (620, 400), (310, 420), (450, 280))
    assert state(page, "p.store.problem.n") == 5
    wait_for_result(page)  # of the tour that comes by itself
    check_tour(frames(page)[-1]["tour"], 5)
    page.click("#solve")
    until(page, "window.playground.panes[0].run.isLive === false")
    wait_for_result(page)
    cities = grn.Instance(coordinates(page))
    shown = frames(page)[-1]
    orders = ([0, *rest] for rest in itertools.permutations(range(1, 5)))
    shortest = min(tour_length(cities, np.array(order)) for order in orders)
    assert shown["length"] == pytest.approx(shortest)
    assert tour_length(cities, check_tour(shown["tour"], 5)) == pytest.approx(shortest)
    until(page, f"document.querySelector('#pane-a b').textContent.startsWith('{shortest:.3f}')")


def test_cities_are_dragged_selected_deleted_and_restored(page: Page) -> None:
    page.click("#clear")
    click_map(page, (300, 150), (600, 160), (620, 400))
    before = coordinates(page)
    box = page.locator("#pane-a canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 350, box["y"] + 250, steps=5)
    page.mouse.up()
    scale = state(page, "p.view.scale")
    moved = coordinates(page)
    assert moved[1:] == before[1:]
    assert moved[0] == pytest.approx([before[0][0] + 50 / scale, before[0][1] - 100 / scale], abs=2e-4)
    click_map(page, (600, 160))
    page.click("#delete")
    assert coordinates(page) == [moved[0], moved[2]]
    page.click("#undo")
    assert coordinates(page) == moved
    page.keyboard.press("Control+z")
    assert coordinates(page) == before
    page.keyboard.press("Control+Shift+z")
    assert coordinates(page) == moved


def test_keyboard_adds_selects_moves_and_deletes(page: Page) -> None:
    page.click("#clear")
    page.focus("#pane-a canvas")
    for key in ("Enter", "Shift+ArrowRight", "Shift+ArrowRight", "Enter", "Shift+ArrowUp", "Enter"):
        page.keyboard.press(key)
    first, second, third = coordinates(page)
    assert second[0] > first[0]
    assert second[1] == first[1]
    assert third[1] > second[1]
    for key in (".", "ArrowLeft"):
        page.keyboard.press(key)
    assert coordinates(page)[0][0] < first[0]
    assert page.inner_text("#status").startswith("city 0 at ")
    page.keyboard.press("Delete")
    assert coordinates(page) == [second, third]


def test_every_control_can_be_reached_by_tab(page: Page) -> None:
    wait_for_result(page)
    page.wait_for_selector("#play[aria-label=Play]")
    wanted = page.evaluate(
        """[...document.querySelectorAll('button, input, select, canvas[tabindex]')]
            .filter((each) => each.checkVisibility() && !each.disabled).map((each) => each.outerHTML)"""
    )
    page.evaluate("document.body.focus()")
    reached = set()
    for _ in range(2 * len(wanted)):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
    named = re.compile(r"<\w+|id=\"[^\"]*\"|data-\w+=\"[^\"]*\"|aria-label=\"[^\"]*\"")
    assert {tuple(named.findall(each)[:3]) for each in wanted} <= {
        tuple(named.findall(each)[:3]) for each in reached
    }


@pytest.mark.parametrize(
    ("name", "text", "cities", "rule"),
    [
        ("three.tsp", "NAME: t\nTYPE: TSP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n"
         "1 0 0\n2 30 0\n3 0 40\nEOF\n", [[0, 0], [30, 0], [0, 40]], "EUC_2D"),
        ("two.csv", "x,y,note\n1,2,a\n4,6,b\n", [[1, 2], [4, 6]], "EUCLIDEAN"),
        ("two.geojson", '{"type":"FeatureCollection","features":['
         '{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[11.5,48.1]}},'
         '{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[13.4,52.5]}}]}',
         [[48.1, 11.5], [52.5, 13.4]], "GREAT_CIRCLE"),
    ],
)  # fmt: skip
def test_dropped_file_is_opened(page: Page, name: str, text: str, cities: list[Any], rule: str) -> None:
    drop(page, name, text)
    until(page, "window.playground.store.problem.example === null")
    assert coordinates(page) == cities
    assert state(page, "p.store.problem.rule") == rule
    wait_for_result(page)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("letters.csv", "x,y\n1,two\n", "letters.csv: .*two"),
        ("empty.tsp", "", r"empty\.tsp: "),
        ("cities.xlsx", "PK", r"cities\.xlsx: files of cities end in \.tsp"),
        ("big.csv", "x,y\n" + "1,2\n" * 600_000, r"big\.csv: 2,400,004 bytes; this server reads up to"),
    ],
)
def test_bad_file_is_refused_in_words(page: Page, name: str, text: str, said: str) -> None:
    before = coordinates(page)
    drop(page, name, text)
    page.wait_for_selector("#alert:not([hidden])")
    assert re.match(said, page.inner_text("#alert span"))
    assert coordinates(page) == before
    page.click("#alert button")
    assert page.is_hidden("#alert")


def test_search_is_watched_paused_and_stepped_through(page: Page) -> None:
    choose(page, "random-1000")
    page.fill("#seconds", "6")
    page.click("#solve")
    until(page, "window.playground.panes[0].run?.frames.length >= 4")
    page.click("#play")
    page.wait_for_selector("#play[aria-label=Play]")
    at, count = map(int, re.findall(r"\d+", page.inner_text("#counter")))
    assert count >= 3
    until(page, f"window.playground.player.times.length > {count}")  # held, but not ended
    assert page.inner_text("#counter").startswith(f"frame {at} of ")
    seen = page.inner_text("#pane-a b")
    page.click("#back")
    until(page, f"document.getElementById('counter').textContent.startsWith('frame {at - 1} of')")
    assert page.inner_text("#pane-a b") >= seen
    assert "new in this step" in page.inner_text("#legend")
    page.click("#forward")
    page.click("#forward")
    until(page, f"document.getElementById('counter').textContent.startsWith('frame {at + 1} of')")
    page.click("#solve")  # stops
    until(page, "!window.playground.panes[0].run.isRunning")
    sent = frames(page)
    cities = grn.Instance(coordinates(page))
    lengths = [each["length"] for each in sent]
    assert all(a > b for a, b in itertools.pairwise(lengths))
    for each in sent:
        assert tour_length(cities, check_tour(each["tour"], 1000)) == pytest.approx(each["length"])
    assert 0.95 * lengths[-1] < state(page, "p.panes[0].run.bound") <= lengths[-1]
    page.select_option("#speed", "30")
    page.evaluate("window.playground.player.seek(0)")
    page.click("#play")
    until(page, "window.playground.player.isAtEnd")


def test_two_methods_side_by_side(page: Page) -> None:
    choose(page, "uniform-50")
    page.select_option("#compare", "edge")
    for which in ("a", "b"):
        page.uncheck(f"#method-{which} [data-part=improve]")
    page.fill("#seconds", "10")  # enough for the network on any machine
    page.click("#solve")
    until(page, "window.playground.panes.every((pane) => pane.run?.result)")
    methods = state(page, "p.panes.map((pane) => pane.run.result.method)")
    assert methods == ["georoutenet, greedy", "greedy edge"]
    for pane, method in zip(("a", "b"), methods, strict=True):
        until(page, f"document.querySelector('#pane-{pane} figcaption').textContent.includes('{method} ·')")
    page.select_option("#compare", "weights")
    until(page, "window.playground.panes.every((pane) => pane.scores)")
    opinions = state(page, "p.panes.map((pane) => [...pane.scores.probability])")
    assert opinions[0] != opinions[1]
    page.select_option("#method-a [data-part=first]", "curve")
    page.select_option("#compare", "search")
    page.fill("#seconds", "0.5")
    page.click("#solve")
    until(page, "window.playground.panes.every((pane) => pane.run?.result)")
    searched, plain = (state(page, f"p.panes[{k}].run.result") for k in (0, 1))
    assert searched["initial_length"] == plain["length"] > searched["length"]
    assert plain["iterations"] == 0


def test_downloads_are_read_back(page: Page, tmp_path: Path) -> None:
    page.click("#solve")
    wait_for_result(page)
    shown = frames(page)[-1]["tour"]
    capitals = us_capitals()
    page.click("#take")
    read = {}
    for name in ("tour", "csv", "json", "geojson", "gpx", "png", "svg"):
        with page.expect_download() as waiting:
            page.click(f"[data-format={name}]")
        assert waiting.value.suggested_filename == f"US-capitals.{name}"
        read[name] = tmp_path / f"capitals.{name}"
        waiting.value.save_as(read[name])
    assert grn.read_tour(read["tour"], capitals.n).tolist() == shown
    for name in ("csv", "geojson"):
        again = grn.read_instance(read[name])
        assert again.coordinates.tolist() == capitals.coordinates[shown].tolist(), name
        assert list(again.columns["name"]) == [capitals.ids[city] for city in shown]
    assert grn.read_tour(read["json"], capitals.n).tolist() == shown
    route = ElementTree.parse(read["gpx"]).getroot().iter("{http://www.topografix.com/GPX/1/1}rtept")
    places = [[float(point.get("lat", "")), float(point.get("lon", ""))] for point in route]
    assert places == capitals.coordinates[[*shown, shown[0]]].tolist()
    picture = matplotlib.image.imread(read["png"])
    width, height = state(page, "[p.view.width, p.view.height]")
    assert picture.shape[:2] == (2 * height, 2 * width)
    assert picture.std() > 0.05
    drawn = ElementTree.parse(read["svg"]).getroot()
    assert drawn.get("width") == str(width)
    assert any(
        path.get("d", "").count("L") == capitals.n for path in drawn.iter("{http://www.w3.org/2000/svg}path")
    )


def test_shown_code_and_command_find_the_tour(page: Page, tmp_path: Path, monkeypatch: Any) -> None:
    page.fill("#seconds", "0.2")
    page.click("#take")
    with page.expect_download() as waiting:
        page.click("#cities-file")
    waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
    code, command = page.inner_text("#python"), page.inner_text("#command")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code.replace("print(", "str((").replace("lower_bound)", "lower_bound))"), found)
    assert found["result"].instance.coordinates.tolist() == us_capitals().coordinates.tolist()
    saved = grn.read_tour("cities.tour", 48)
    assert saved.tolist() == found["result"].tour.tolist()
    Path("cities.tour").unlink()
    program, *words = shlex.split(command)
    assert program == "georoutenet"
    assert CliRunner().invoke(app, words).exit_code == 0
    assert tour_length(us_capitals(), grn.read_tour("cities.tour", 48)) <= found["result"].initial_length


def test_cities_under_a_matrix_are_read_back(page: Page, tmp_path: Path) -> None:
    matrix = [[0, 1.5, 9, 4], [1.5, 0, 2, 8], [9, 2, 0, 3], [4, 8, 3, 0]]
    given = grn.Instance([[0, 0], [1, 0], [1, 1], [0, 1]], matrix=matrix, name="four")
    grn.write_instance(tmp_path / "given.tsp", given)
    page.set_input_files("#file", tmp_path / "given.tsp")
    until(page, "window.playground.store.problem.name === 'four'")
    page.click("#take")
    with page.expect_download() as waiting:
        page.click("#cities-file")
    waiting.value.save_as(tmp_path / "cities.tsp")
    read = grn.read_instance(tmp_path / "cities.tsp")
    assert read.distance_matrix().tolist() == matrix
    assert read.coordinates.tolist() == given.coordinates.tolist()


def test_code_of_few_cities_holds_them(page: Page) -> None:
    page.click("#clear")
    click_map(page, (300, 150), (600, 160), (620, 400))
    page.click("#take")
    found: dict[str, Any] = {}
    exec(page.inner_text("#python").partition("result =")[0], found)
    assert found["cities"].coordinates.tolist() == coordinates(page)


def test_shared_link_holds_the_cities(page: Page, watched: BrowserContext) -> None:
    page.select_option("#shape", "clustered")
    page.fill("#size", "300")
    page.keyboard.press("Enter")
    until(page, "window.playground.store.problem.n === 300")
    page.select_option("[data-part=first] >> nth=0", "curve")
    page.click("#take")
    link = page.input_value("#link")
    assert len(link) < 3_000
    other = opened(watched, link)
    assert coordinates(other) == coordinates(page)
    assert other.input_value("[data-part=first] >> nth=0") == "curve"
    other.reload()
    until(other, "window.playground?.store.problem.n === 300")
    assert coordinates(other) == coordinates(page)


def test_edited_capitals_are_shared_with_their_names(page: Page, watched: BrowserContext) -> None:
    page.focus("#pane-a canvas")
    for key in (".", "ArrowLeft"):
        page.keyboard.press(key)
    page.click("#take")
    other = opened(watched, page.input_value("#link"))
    assert coordinates(other) == coordinates(page)
    assert state(other, "p.store.problem.ids") == list(us_capitals().ids)


@pytest.mark.parametrize(
    "fragment", ["c=!!&d=4&rule=EUCLIDEAN", "c=gA&d=4&rule=EUCLIDEAN", "c=AA&d=99", "example=none"]
)
def test_broken_link_is_said_to_be_one(page: Page, watched: BrowserContext, fragment: str) -> None:
    other = opened(watched, f"{page.url}#{fragment}")  # shows the first example instead
    assert "link cannot be read" in other.inner_text("#alert span")


def test_numbers_survive_a_link(page: Page) -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e6):
        given = np.round(rng.normal(size=(200, 2)) * scale, 3 if scale > 1 else 9).tolist()
        back = page.evaluate(
            """async (coordinates) => {
                const { encode, decode } = await import("./static/share.js");
                const { Problem } = await import("./static/problem.js");
                const coded = encode(new Problem({ name: "a & b", coordinates }), { first: "curve" });
                return decode(coded.fragment).fields.coordinates;
            }""",
            given,
        )
        assert back == given


def test_random_shapes_are_of_their_seed_and_in_the_square(page: Page) -> None:
    draw = """async ([shape, seed]) => {
        const { SHAPE_NAMES, randomCities } = await import("./static/random.js");
        return shape === null ? SHAPE_NAMES : randomCities(shape, 500, seed);
    }"""
    for shape in page.evaluate(draw, [None, 0]):
        cities = np.array(page.evaluate(draw, [shape, 1]))
        assert cities.shape == (500, 2), shape
        assert cities.min() >= 0, shape
        assert cities.max() <= 1, shape
        assert cities.std(axis=0).min() > 0.05, shape
        assert page.evaluate(draw, [shape, 1]) == cities.tolist()
        assert page.evaluate(draw, [shape, 2]) != cities.tolist()


def test_limits_are_said_and_kept(page: Page) -> None:
    assert "up to 5,000 cities" in page.inner_text("#limits")
    page.fill("#size", "6000")
    page.keyboard.press("Enter")
    until(page, "window.playground.store.problem.n === 6000")
    page.click("#solve")
    assert "There are 6,000 cities; this server solves up to 5,000" in page.inner_text("#alert span")


def test_touch_at_phone_width(page: Page) -> None:
    page.set_viewport_size(PHONE)
    page.tap("[data-tab=tab-cities]")
    page.tap("#clear")
    page.tap("[data-tab=tab-cities]")
    for x, y in ((120, 120), (300, 130), (310, 250), (130, 260)):
        page.locator("#pane-a canvas").tap(position={"x": x, "y": y})
    assert state(page, "p.store.problem.n") == 4
    wait_for_result(page)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    inside = """() => [...document.querySelectorAll('header button, #dock *, .tools button, #tabs button')]
        .filter((each) => each.checkVisibility())
        .every((each) => each.getBoundingClientRect().right <= innerWidth + 1)"""
    assert page.evaluate(inside)


def test_dark_and_light(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    until(page, "document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != dark


def test_no_serious_fault_of_accessibility(page: Page) -> None:
    if not AXE.exists():
        pytest.skip(
            f"axe-core is missing: npm install --prefix {AXE.parts[-4]} axe-core, or make test-browser"
        )
    page.evaluate(AXE.read_text(encoding="utf-8"))
    wait_for_result(page)

    def faults(where: str) -> list[str]:
        found = page.evaluate("axe.run().then((answer) => answer.violations)")
        return [
            f"{where}: {each['id']}: {[node['html'][:120] for node in each['nodes']]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    found = faults("light")
    page.select_option("#compare", "edge")
    page.click("#theme")
    found += faults("dark, side by side")
    page.click("#take")
    found += faults("take it away")
    page.keyboard.press("Escape")
    page.click("#help")
    found += faults("help")
    page.keyboard.press("Escape")
    page.set_viewport_size(PHONE)
    page.tap("[data-tab=tab-solve]")
    found += faults("phone")
    assert found == []
