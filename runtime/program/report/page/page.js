// Draws the report that the page holds as JSON (report_json.h).

let report = null;

const render = newer => {
  report = newer;
  charts = [];
  begun = null;
  const follows = report.version > 0, main = document.querySelector('main');
  const open = [...document.querySelectorAll('details')].map(element => element.open);
  document.title = report.runs.map(run => run.name).join(', ').slice(0, 100) + ' - meshtrain';
  main.replaceChildren();
  append(main, [
    head(), problems(), training(), speed(), section("Where a step's time goes", eachRun(timeOfRun)),
    section('Communication by axis', eachRun(communicationOfRun)),
    section('Goodput: where the time of the run went', eachRun(goodputOfRun)),
    section('Plan and truth', eachRun(planOfRun)),
    section('History', eachRun(historyOfRun)), section('Mesh', eachRun(meshOfRun)), recipes(),
    make('footer', (follows ? 'As of ' : 'Made by meshtrain report, ') + report.made +
         '. Draw a range of steps in a chart to enlarge it; a double click shows all steps again.')]);
  document.querySelectorAll('details').forEach((element, i) => { element.open = open[i] || false; });
  show(shown);
};

// Asks for a newer report every two seconds. The range of steps and the unfolded parts stay as they are.
const follow = async () => {
  const state = document.querySelector('#follow');
  try {
    const answer = await fetch('/report.json?after=' + report.version, {cache: 'no-store'});
    if (answer.status === 200) render(await answer.json());
    state.textContent = 'follows the run';
    state.className = 'soft';
  } catch (gone) {
    state.textContent = 'meshtrain report --watch does not answer: this report may be out of date';
    state.className = 'alarm';
  }
  setTimeout(follow, 2000);
};

render(JSON.parse(document.querySelector('#report').textContent));
if (report.version > 0) {
  document.querySelector('#follow').hidden = false;
  setTimeout(follow, 2000);
}
