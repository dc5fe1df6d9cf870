// The page's script. Whatever is shown comes from users and policies: it becomes text
// nodes, never HTML. Paths are relative, so that the page works behind `kubectl proxy`.

const statusPath = '../status';
const explainPath = '../authz/v1/explain';
const whoCanPath = '../authz/v1/who-can';
const reviewPath = '../../apis/authentication.k8s.io/v1/selfsubjectreviews';

const refreshMillis = 5000;
const timeoutMillis = 30000;
const pageSize = 100;
// As many near misses are for people.
const missesShown = 5;

// The bearer token lives here and nowhere else.
let token = '';

// --- asking -----------------------------------------------------------------------

// RequestError is an answer that is none, in words.
class RequestError extends Error {}

// ask sends a question, or reads if there is none, and returns the answer's JSON.
async function ask(path, question, signal) {
  const headers = {Accept: 'application/json'};
  if (token) headers.Authorization = `Bearer ${token}`;
  const request = {
    headers, cache: 'no-store', redirect: 'error', referrerPolicy: 'no-referrer',
    signal: AbortSignal.any([AbortSignal.timeout(timeoutMillis), ...(signal ? [signal] : [])]),
  };
  if (question !== undefined) {
    request.method = 'POST';
    request.body = JSON.stringify(question);
    headers['Content-Type'] = 'application/json';
  }
  let response;
  let body;
  try {
    response = await fetch(path, request);
    body = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError(error.name === 'TimeoutError' ?
      'The gateway has not answered in time.' : 'The gateway cannot be reached.');
  }
  let answer;
  try {
    answer = JSON.parse(body);
  } catch {
    answer = undefined;
  }
  if (response.ok && answer !== undefined) return answer;
  throw new RequestError(inWords(response, answer));
}

// inWords tells of a failure: what it means, and what the gateway says of it.
function inWords(response, answer) {
  const meaning = {
    400: 'The question is not right',
    401: 'The gateway does not know who you are',
    403: 'You may not ask this',
    404: 'The gateway does not have this',
    429: 'Too many questions at once',
    503: 'This cannot be decided now',
    504: 'This took too long',
  }[response.status] ?? (response.ok ? 'The answer cannot be read' : 'The gateway has failed');
  const said = typeof answer?.message === 'string' && answer.message ? `: ${answer.message}` : '.';
  const retry = response.headers.get('Retry-After');
  const again = retry && /^\d+$/.test(retry) ? ` Try again in ${retry} s.` : '';
  const stop = again && !said.endsWith('.') ? '.' : '';
  return `${meaning} (${response.status})${said}${stop}${again}`;
}

// --- showing ----------------------------------------------------------------------

// make makes an element. Children are elements or texts; undefined ones are left out.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== ''));
  return element;
}

// facts makes a list of names and values, without those that have no value.
function facts(pairs) {
  const list = make('dl');
  for (const [name, value] of pairs) {
    if (value === undefined || value === '') continue;
    list.append(make('div', {}, make('dt', {}, name), make('dd', {}, value)));
  }
  return list;
}

// objectName is an RBAC object as people call it.
function objectName(object) {
  return object ? `${object.kind} ${object.namespace ? `${object.namespace}/` : ''}${object.name}` : '';
}

// subjectName is whom a binding names. A service account without a namespace is of the
// binding's.
function subjectName(grant) {
  const {kind, name, namespace} = grant.subject;
  return `${kind} ${kind === 'ServiceAccount' ? `${namespace || grant.binding?.namespace || ''}/` : ''}${name}`;
}

// ruleName is the place of a rule in its role, as Kubernetes' messages name fields.
function ruleName(grant) {
  return `rules[${grant.ruleIndex ?? 0}]`;
}

// ruleText is a rule in one line.
function ruleText(rule) {
  const parts = [];
  const add = (what, values) => {
    if (values?.length) parts.push(`${what}: ${values.join(', ')}`);
  };
  add('verbs', rule.verbs);
  // The core group has no name.
  if (rule.resources?.length) add('API groups', rule.apiGroups?.map((group) => group || '""'));
  add('resources', rule.resources);
  add('names', rule.resourceNames);
  add('URLs', rule.nonResourceUrls);
  return parts.join('; ');
}

// actionText is an action as a person would say it.
function actionText(action) {
  if (action.path) return `${action.verb} ${action.path}`;
  const group = action.api_group ? `.${action.api_group}` : '';
  const resource = action.resource + (action.subresource ? `/${action.subresource}` : '') + group;
  const name = action.name ? ` ${JSON.stringify(action.name)}` : '';
  const where = action.namespace ? ` in namespace ${action.namespace}` : '';
  return `${action.verb} ${resource}${name}${where}`;
}

// --- the state --------------------------------------------------------------------

const state = {timer: 0, paused: false, asked: 0};

// refresh asks for the state, and again after a while unless that is paused or nobody
// looks. An answer that another question has overtaken is not shown.
async function refresh() {
  clearTimeout(state.timer);
  const asked = ++state.asked;
  const summary = document.getElementById('state-summary');
  const shown = document.getElementById('gates');
  try {
    const status = await ask(statusPath);
    if (asked !== state.asked) return;
    shown.replaceChildren(...status.gates.map(gateCard));
    shown.classList.remove('stale');
    document.getElementById('state-time').textContent = `as of ${new Date().toLocaleTimeString()}, ${status.version}`;
    const failing = status.gates.filter((gate) => !gate.ready).map((gate) => gate.name);
    say(summary, failing.length ? `Nothing is decided by: ${failing.join(', ')}. Requests that need it are told to try again.` : 'All gates decide.');
    summary.className = failing.length ? 'bad' : 'good';
  } catch (error) {
    if (asked !== state.asked) return;
    shown.classList.add('stale');
    say(summary, error instanceof RequestError ? error.message : 'The state cannot be shown.');
    summary.className = 'bad';
    if (!(error instanceof RequestError)) throw error;
  } finally {
    if (asked === state.asked && !state.paused && !document.hidden) {
      state.timer = setTimeout(refresh, refreshMillis);
    }
  }
}

// say changes a text that is read aloud only if it is another.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function gateCard(gate) {
  const serving = gate.replicas.filter((replica) => replica.health === 'SERVING').length;
  const replicas = make('ul', {class: 'replicas'}, ...gate.replicas.map((replica) =>
    make('li', {class: replica.health === 'SERVING' ? 'good' : 'bad'}, `${replica.address} ${replica.health}`)));
  return make('article', {class: 'card', 'aria-label': `gate ${gate.name}`},
    make('h3', {}, gate.name, ' ', make('span', {class: gate.ready ? 'badge good' : 'badge bad'}, gate.ready ? 'ready' : 'not ready')),
    gate.ready ? undefined : make('p', {class: 'reason'}, gate.reason ?? ''),
    facts([
      ['Endpoint', gate.endpoint],
      ['Replicas', gate.replicas.length ? `${serving} of ${gate.replicas.length} serving` : 'resolved to nothing'],
      ['', gate.replicas.length ? replicas : ''],
      ['Follows changes', gate.stream && (gate.stream.following ? `yes, ${gate.stream.ageSeconds.toFixed(1)} s ago` : 'no')],
      ['Cache hits', gate.cache && hitRate(gate.cache)],
      ['Answers kept', gate.cache && String(gate.cache.entries)],
      ['Configuration', gate.configuration && make('code', {title: gate.configuration}, gate.configuration.slice(0, 12))],
    ]));
}

function hitRate(cache) {
  const all = cache.hits + cache.misses + cache.bypassed;
  return all ? `${(100 * cache.hits / all).toFixed(1)} % of ${all}` : 'none asked';
}

// --- who asks ---------------------------------------------------------------------

// identify shows whom the gateway takes the page for.
async function identify() {
  const identity = document.getElementById('identity');
  try {
    const review = await ask(reviewPath, {apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview'});
    identity.replaceChildren('You are ', make('strong', {}, review.status.userInfo.username));
  } catch (error) {
    identity.replaceChildren(error instanceof RequestError ? error.message : 'Who you are cannot be shown.');
    if (!(error instanceof RequestError)) throw error;
  }
}

// --- the questions ----------------------------------------------------------------

// showChosen shows the fields that belong to what is chosen, and leaves the others out of
// the question.
function showChosen(form) {
  const data = new FormData(form);
  for (const part of form.querySelectorAll('[data-show]')) {
    const [name, value] = part.dataset.show.split('=');
    part.hidden = data.get(name) !== value;
    for (const control of part.querySelectorAll('input, textarea')) control.disabled = part.hidden;
  }
}

// actionOf reads an action from a form.
function actionOf(data) {
  const field = (name) => (data.get(name) ?? '').trim();
  if (field('on') === 'path') return {verb: field('method').toLowerCase(), path: field('path')};
  // As kubectl has it, RESOURCE.GROUP/SUBRESOURCE.
  const [, resource, group, subresource] = /^([^./]*)(?:\.([^/]*))?(?:\/(.*))?$/s.exec(field('resource')) ?? [];
  const action = {
    verb: field('verb'), resource: resource ?? '', resource_request: true,
    api_group: field('group') || group || '',
    subresource: field('subresource') || subresource || '',
    namespace: field('namespace'), name: field('name'),
  };
  return Object.fromEntries(Object.entries(action).filter(([, value]) => value !== ''));
}

// userOf reads who is asked about; undefined stands for the caller. As impersonation
// does, it gives a service account its groups, and everybody system:authenticated.
function userOf(data) {
  const everyone = 'system:authenticated';
  switch (data.get('who')) {
    case 'user': {
      const name = data.get('user').trim();
      if (!name) throw new RequestError('The name of the user is missing.');
      const groups = data.get('groups').split('\n').map((group) => group.trim()).filter((group) => group);
      const serviceAccount = /^system:serviceaccount:([^:]+):[^:]+$/.exec(name);
      if (serviceAccount && !groups.length) groups.push(...serviceAccountGroups(serviceAccount[1]));
      const all = name === 'system:anonymous' ? 'system:unauthenticated' : everyone;
      return {name, groups: [...new Set([...groups, all])]};
    }
    case 'serviceaccount': {
      const parts = data.get('serviceaccount').trim().split(':');
      if (parts.length !== 2 || !parts[0] || !parts[1]) {
        throw new RequestError('The service account has to be namespace:name.');
      }
      return {name: `system:serviceaccount:${parts.join(':')}`, groups: [...serviceAccountGroups(parts[0]), everyone]};
    }
    default:
      return undefined;
  }
}

function serviceAccountGroups(namespace) {
  return ['system:serviceaccounts', `system:serviceaccounts:${namespace}`];
}

// questions makes a section's form ask. The answer to a question takes the place of the
// one before, and the focus; a failure is read aloud.
function questions(id, answer) {
  const section = document.getElementById(id);
  const form = section.querySelector('form');
  const problem = section.querySelector('.problem');
  const shown = section.querySelector('.answer');
  const button = form.querySelector('button[type=submit]');
  let running;
  form.querySelector('[data-action]').replaceWith(document.getElementById('action').content.cloneNode(true));
  form.addEventListener('change', () => showChosen(form));
  showChosen(form);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    running?.abort();
    const current = running = new AbortController();
    problem.textContent = '';
    shown.replaceChildren();
    section.setAttribute('aria-busy', 'true');
    button.classList.add('busy');
    try {
      const parts = await answer(new FormData(form), current.signal);
      if (current !== running) return;
      shown.replaceChildren(...parts);
      const title = shown.querySelector('h3');
      title.tabIndex = -1;
      title.focus();
    } catch (error) {
      if (current !== running || current.signal.aborted) return;
      problem.textContent = error instanceof RequestError ? error.message : 'The answer cannot be shown.';
      if (!(error instanceof RequestError)) throw error;
    } finally {
      if (current === running) {
        section.removeAttribute('aria-busy');
        button.classList.remove('busy');
      }
    }
  });
}

// encodedNote tells that names are not as users know them.
function encodedNote(...messages) {
  return messages.some((message) => message?.percentEncoded) ?
    make('p', {class: 'hint'}, 'Names are percent-encoded here, since one of them is not UTF-8.') : undefined;
}

function list(title, texts) {
  if (!texts?.length) return undefined;
  return make('section', {}, make('h4', {}, title), make('ul', {}, ...texts.map((text) => make('li', {}, text))));
}

// --- explain ----------------------------------------------------------------------

async function explain(data, signal) {
  const action = actionOf(data);
  const user = userOf(data);
  const explanation = await ask(explainPath, {attributes: user ? {...action, user} : action}, signal);
  const decision = explanation.answer;
  const allowed = decision.decision === 'DECISION_ALLOW';
  const who = user?.name ?? 'you';
  return [
    make('h3', {}, make('span', {class: allowed ? 'badge good' : 'badge bad'}, allowed ? 'Yes' : 'No'),
      ` ${who} may ${allowed ? '' : 'not '}${actionText(action)}`),
    explanation.grant ? grantFacts(explanation) : undefined,
    explanation.decidedBy ? make('p', {}, `Decided by ${explanation.decidedBy}`) : undefined,
    explanation.grant || explanation.decidedBy ? undefined : says(decision),
    list('Errors while deciding', decision.error ? [decision.error] : []),
    list('Roles that are bound and cannot be read', explanation.errors),
    allowed || explanation.decidedBy ? undefined : misses(action, explanation.nearMisses ?? []),
    encodedNote(explanation, decision),
  ].filter((part) => part);
}

// grantFacts is the path by which RBAC allows it.
function grantFacts({grant, answer}) {
  const authorizer = answer.authorizers?.find((say) => say.decision === 'DECISION_ALLOW')?.name ?? 'rbac';
  return facts([
    ['Authorizer', authorizer],
    ['Binding', objectName(grant.binding)],
    ['Subject', subjectName(grant)],
    ['Role', objectName(grant.role)],
    [ruleName(grant), ruleText(grant.rule)],
  ]);
}

// says is what each authorizer said.
function says(decision) {
  const text = {DECISION_ALLOW: 'allows it', DECISION_DENY: 'refuses it', DECISION_NO_OPINION: 'no opinion'};
  return make('section', {}, make('h4', {}, 'What each authorizer said'),
    facts((decision.authorizers ?? []).map((say) =>
      [say.name, [text[say.decision] ?? 'no decision', say.reason, say.error].filter((part) => part).join(': ')])));
}

// misses are the rules that come nearest.
function misses(action, nearMisses) {
  if (!nearMisses.length) return make('p', {class: 'hint'}, 'No rule that is bound to this user comes near.');
  const more = nearMisses.length - missesShown;
  return make('section', {}, make('h4', {}, 'Nearest rules'),
    make('ol', {class: 'misses'}, ...nearMisses.slice(0, missesShown).map((miss) => make('li', {},
      make('p', {}, `${ruleName(miss.grant)} of ${objectName(miss.grant.role)}, by ${objectName(miss.grant.binding)}:`),
      make('p', {class: 'rule'}, ruleText(miss.grant.rule)),
      make('p', {class: 'short'}, shortfall(action, miss))))),
    more > 0 ? make('p', {class: 'hint'}, `and ${more} more`) : undefined);
}

// shortfall tells in what a rule falls short.
function shortfall(action, miss) {
  const quoted = (text) => JSON.stringify(text ?? '');
  const bound = `namespace ${quoted(miss.grant.binding?.namespace)}`;
  switch (miss.dimension) {
    case 'DIMENSION_VERB': return `lacks the verb ${quoted(action.verb)}`;
    case 'DIMENSION_API_GROUP': return `lacks the API group ${quoted(action.api_group)}`;
    case 'DIMENSION_RESOURCE': return `lacks the resource ${quoted(action.resource + (action.subresource ? `/${action.subresource}` : ''))}`;
    case 'DIMENSION_NAME': return action.name ? `lacks the name ${quoted(action.name)}` : 'is for single names, and the request has none';
    case 'DIMENSION_NAMESPACE': return action.namespace ? `is bound in ${bound}, not in ${quoted(action.namespace)}` :
      `is bound in ${bound} only, and the request is not in a namespace`;
    case 'DIMENSION_PATH': return `lacks the path ${quoted(action.path)}`;
    default: return `falls short in a way that this page does not know: ${miss.dimension}`;
  }
}

// --- who can ----------------------------------------------------------------------

async function whoCan(data, signal) {
  const action = actionOf(data);
  const question = {attributes: action, page_size: pageSize};
  const first = await ask(whoCanPath, question, signal);
  if (!first.grants?.length) {
    return [make('h3', {}, `Nobody but system:masters may ${actionText(action)} by RBAC`), ...whoCanNotes(first)];
  }
  const rows = make('tbody');
  const count = make('p', {class: 'hint', role: 'status'});
  const problem = make('p', {class: 'problem', role: 'alert'});
  const notes = make('div');
  const more = make('button', {type: 'button', class: 'quiet'}, 'More');
  const show = (page) => {
    const before = rows.rows.length;
    rows.append(...page.grants.map(grantRow));
    question.page_token = page.nextPageToken;
    more.hidden = !page.nextPageToken;
    count.textContent = page.nextPageToken ? `${rows.rows.length} so far` : `${rows.rows.length} in all`;
    notes.replaceChildren(...whoCanNotes(page));
    return rows.rows[before];
  };
  show(first);
  more.addEventListener('click', async () => {
    if (more.getAttribute('aria-disabled')) return;
    more.setAttribute('aria-disabled', 'true');
    problem.textContent = '';
    try {
      const row = show(await ask(whoCanPath, question, signal));
      row?.cells[0].setAttribute('tabindex', '-1');
      row?.cells[0].focus();
    } catch (error) {
      if (signal.aborted) return;
      problem.textContent = error instanceof RequestError ? error.message : 'The answer cannot be shown.';
      if (!(error instanceof RequestError)) throw error;
    } finally {
      more.removeAttribute('aria-disabled');
    }
  });
  const head = ['Subject', 'Binding', 'Role'].map((name) => make('th', {scope: 'col'}, name));
  return [
    make('h3', {}, `These may ${actionText(action)}`),
    make('div', {class: 'scroll', role: 'region', 'aria-label': 'Who can', tabindex: '0'},
      make('table', {}, make('thead', {}, make('tr', {}, ...head)), rows)),
    count, more, problem, notes,
  ];
}

// grantRow is one grant. Where the table does not fit, each cell is shown with its name.
function grantRow(grant) {
  const cells = [['Subject', subjectName(grant)], ['Binding', objectName(grant.binding)], ['Role', objectName(grant.role)]];
  return make('tr', {}, ...cells.map(([name, text]) => make('td', {'data-name': name}, text)));
}

function whoCanNotes(page) {
  const others = page.notListedBy ?? [];
  return [
    make('p', {class: 'hint'}, 'system:masters always may.' +
      (others.length ? ` Others may be allowed by what cannot list whom it allows: ${others.join(', ')}.` : '')),
    list('Roles that are bound and cannot be read', page.errors),
    encodedNote(page),
  ].filter((part) => part);
}

// --- the page ---------------------------------------------------------------------

questions('explain', explain);
questions('who-can', whoCan);

document.getElementById('pause').addEventListener('click', (event) => {
  state.paused = !state.paused;
  event.currentTarget.setAttribute('aria-pressed', String(state.paused));
  clearTimeout(state.timer);
  if (!state.paused) refresh();
});
document.addEventListener('visibilitychange', () => {
  clearTimeout(state.timer);
  if (!document.hidden && !state.paused) refresh();
});

const tokenField = document.getElementById('token');
function useToken(value) {
  token = value;
  tokenField.value = '';
  document.querySelector('#credentials > summary').textContent = token ? 'Asking with a token' : 'Ask with a token';
  identify();
  refresh();
}
document.getElementById('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const given = tokenField.value.trim();
  // Others cannot be sent in a header.
  tokenField.setCustomValidity(/^[\x21-\x7e]+$/.test(given) ? '' : 'A bearer token has ASCII characters only, and no spaces.');
  if (tokenField.reportValidity()) useToken(given);
});
tokenField.addEventListener('input', () => tokenField.setCustomValidity(''));
document.getElementById('token-forget').addEventListener('click', () => useToken(''));

identify();
refresh();
