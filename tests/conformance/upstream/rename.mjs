// Stands between the suite, which calls things by the names it knows, and a server that offers them as `NAME.tool` and
// `NAME+uri`: takes those prefixes off what the server says of them, and puts them before what it is asked for. Nothing
// else is changed.
//
//     node rename.mjs NAME URL
//
// Its first line of output is its own URL.

import http from 'node:http';

const [, , NAME, TARGET] = process.argv;
const target = new URL(TARGET);
const ENCODED = /^=\?base64\?(.*)\?=$/;

const plain = { add: (name) => `${NAME}.${name}`, remove: (name) => strip(name, `${NAME}.`) };
const uri = { add: (name) => `${NAME}+${name}`, remove: (name) => strip(name, `${NAME}+`) };
const strip = (text, prefix) => (text.startsWith(prefix) ? text.slice(prefix.length) : text);

/** What a request names, by its method: the member of its parameters, and how it is called here. */
const NAMED = {
    'tools/call': ['name', plain],
    'prompts/get': ['name', plain],
    'resources/read': ['uri', uri],
    'resources/subscribe': ['uri', uri],
    'resources/unsubscribe': ['uri', uri],
};
/** What a result lists: the member of each entry. */
const LISTED = {
    tools: ['name', plain],
    prompts: ['name', plain],
    resources: ['uri', uri],
    resourceTemplates: ['uriTemplate', uri],
    contents: ['uri', uri],
};

/** Changes a member that is a string; says whether that made a difference. */
function change(object, member, how) {
    const before = object?.[member];
    if (typeof before !== 'string') return false;
    object[member] = how(before);
    return object[member] !== before;
}

/** The same for each of a list. */
const changeAll = (list, how) =>
    Array.isArray(list) && list.map((_, at) => change(list, at, how)).some((changed) => changed);

/** Says whether anything of a request was changed. */
function request({ method, params }) {
    if (NAMED[method]) return change(params, NAMED[method][0], NAMED[method][1].add);
    if (method === 'subscriptions/listen') return changeAll(params?.notifications?.resourceSubscriptions, uri.add);
    const ref = method === 'completion/complete' ? params?.ref : undefined;
    return ref?.type === 'ref/prompt' ? change(ref, 'name', plain.add) : change(ref, 'uri', uri.add);
}

/** Says whether anything of an answer or a notification was changed. */
function said({ method, params, result, error }) {
    if (method === 'notifications/resources/updated') return change(params, 'uri', uri.remove);
    if (method === 'notifications/subscriptions/acknowledged') {
        return changeAll(params?.notifications?.resourceSubscriptions, uri.remove);
    }
    let any = change(error?.data, 'uri', uri.remove);
    for (const [list, [member, how]] of Object.entries(LISTED)) {
        for (const entry of Array.isArray(result?.[list]) ? result[list] : []) {
            any = change(entry, member, how.remove) || any;
        }
    }
    return any;
}

/** A message's text, as it came unless `rename` changes something in it. */
function renamed(text, rename) {
    let message;
    try {
        message = JSON.parse(text);
    } catch {
        return text;
    }
    return message && typeof message === 'object' && rename(message) ? JSON.stringify(message) : text;
}

/** The `Mcp-Name` of a request. One whose Base64 is none stays as it is: it will be refused. */
function named(value, method) {
    const how = NAMED[method]?.[1];
    if (!how) return value;
    const [, encoded] = ENCODED.exec(value) ?? [];
    if (encoded === undefined) return how.add(value);
    const name = Buffer.from(encoded, 'base64');
    if (name.toString('base64') !== encoded) return value;
    return `=?base64?${Buffer.from(how.add(name.toString())).toString('base64')}?=`;
}

/** The headers of a message, in their order, with some values changed. */
function headersOf({ rawHeaders }, change) {
    return rawHeaders.map((text, at) => (at % 2 ? `${change(rawHeaders[at - 1].toLowerCase(), text)}` : text));
}

/** Changes the data of events as they come; all else of them stays. */
async function* events(stream) {
    let rest = '';
    for await (const chunk of stream.setEncoding('utf8')) {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop();
        const data = (line) => (line.startsWith('data: ') ? `data: ${renamed(line.slice(6), said)}` : line);
        if (lines.length) yield lines.map((line) => `${data(line)}\n`).join('');
    }
    yield rest;
}

async function whole(stream) {
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return Buffer.concat(chunks);
}

async function forward(incoming, outgoing) {
    const came = await whole(incoming);
    let method;
    const body = renamed(came.toString(), (message) => {
        ({ method } = message);
        return request(message);
    });
    const headers = headersOf(incoming, (name, value) => {
        if (name === 'mcp-name') return named(value, method);
        return name === 'content-length' ? Buffer.byteLength(body) : value;
    });
    const { hostname: host, port } = target;
    const onward = http.request({ host, port, method: incoming.method, path: incoming.url, headers, agent: false });
    // Whoever hangs up here hangs up there.
    outgoing.on('close', () => onward.destroy());
    onward.on('error', () => outgoing.destroy());
    onward.end(body);
    onward.on('response', async (answer) => {
        try {
            if (answer.headers['content-type']?.startsWith('text/event-stream')) {
                outgoing.writeHead(answer.statusCode, answer.rawHeaders);
                outgoing.flushHeaders();
                for await (const chunk of events(answer)) outgoing.write(chunk);
                outgoing.end();
            } else {
                const text = renamed((await whole(answer)).toString(), said);
                const size = (name, value) => (name === 'content-length' ? Buffer.byteLength(text) : value);
                outgoing.writeHead(answer.statusCode, headersOf(answer, size));
                outgoing.end(text);
            }
        } catch {
            outgoing.destroy();
        }
    });
}

const server = http.createServer((incoming, outgoing) => forward(incoming, outgoing).catch(() => outgoing.destroy()));
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}${target.pathname}`));
