// An MCP server to be wrapped: on one URL it has sessions (2025-11-25) and speaks 2026-07-28, as each client likes. Its
// first line of output is the URL.

import {
    ProtocolError,
    ResourceNotFoundError,
    Server,
    WebStandardStreamableHTTPServerTransport,
    createMcpHandler,
    createRequestStateCodec,
    isLegacyRequest,
} from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { randomBytes, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { offer, resources, templates } from './fixtures.mjs';

const sessions = new Map();
const states = createRequestStateCodec({ key: randomBytes(32) });
const CHANGED = {
    tools: { modern: 'toolsChanged', sessions: 'sendToolListChanged' },
    prompts: { modern: 'promptsChanged', sessions: 'sendPromptListChanged' },
};
const offered = offer(states.mint, (list) => {
    modern.notify[CHANGED[list].modern]();
    for (const { server } of sessions.values()) void server[CHANGED[list].sessions]();
});

function found(list, name, what) {
    const entry = list.find((entry) => entry.name === name);
    if (!entry) throw new ProtocolError(-32602, `there is no ${what} ${name}`);
    return entry;
}

/** What a list says of its entries: all but what makes them work. */
const listed = (list) => list.map(({ run, get, read, contents, complete, ...entry }) => entry);

function serve() {
    const capabilities = {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { listChanged: true, subscribe: true },
        completions: {},
        logging: {},
    };
    const server = new Server(
        { name: 'conformance-upstream', version: '1.0.0' },
        { capabilities, requestState: { verify: states.verify } },
    );
    const on = (method, handle) =>
        server.setRequestHandler(method, (request, ctx) => handle(request.params ?? {}, ctx));
    on('tools/list', () => ({ tools: listed(offered.tools()) }));
    on('tools/call', ({ name, arguments: given = {} }, ctx) => found(offered.tools(), name, 'tool').run(given, ctx));
    on('prompts/list', () => ({ prompts: listed(offered.prompts()) }));
    on('prompts/get', ({ name, arguments: given = {} }, ctx) =>
        found(offered.prompts(), name, 'prompt').get(given, ctx),
    );
    on('resources/list', () => ({ resources: listed(resources) }));
    on('resources/templates/list', () => ({ resourceTemplates: listed(templates) }));
    on('resources/read', ({ uri }) => {
        const contents = resources.find((resource) => resource.uri === uri)?.contents ?? templates[0].read(uri);
        if (!contents) throw new ResourceNotFoundError(uri);
        return { contents };
    });
    on('resources/subscribe', () => ({}));
    on('resources/unsubscribe', () => ({}));
    on('completion/complete', ({ ref, argument: { name, value } }) => {
        const of =
            ref.type === 'ref/prompt'
                ? found(offered.prompts(), ref.name, 'prompt')
                : templates.find((template) => template.uriTemplate === ref.uri);
        const values = (of?.complete?.[name] ?? []).filter((known) => known.startsWith(value));
        return { completion: { values, total: values.length, hasMore: false } };
    });
    return server;
}

/** Keeps what was said on a stream, so that it can be taken up again. */
function memory() {
    const events = [];
    return {
        async storeEvent(stream, message) {
            return `${events.push({ stream, message })}`;
        },
        async getStreamIdForEventId(id) {
            return events[Number(id) - 1]?.stream;
        },
        async replayEventsAfter(last, { send }) {
            const { stream } = events[Number(last) - 1];
            for (const [at, event] of events.entries()) {
                if (at >= Number(last) && event.stream === stream) await send(`${at + 1}`, event.message);
            }
            return stream;
        },
    };
}

async function inSession(request) {
    const id = request.headers.get('mcp-session-id');
    if (id) {
        const session = sessions.get(id);
        return session ? session.transport.handleRequest(request) : new Response('no such session', { status: 404 });
    }
    const server = serve();
    const transport = new WebStandardStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        eventStore: memory(),
        retryInterval: 100,
        onsessioninitialized: (id) => sessions.set(id, { server, transport }),
        onsessionclosed: (id) => sessions.delete(id),
    });
    await server.connect(transport);
    return transport.handleRequest(request);
}

const modern = createMcpHandler(serve, { legacy: 'reject', onerror: console.error });
const fetch = async (request) => ((await isLegacyRequest(request)) ? inSession(request) : modern.fetch(request));
const http = createServer(toNodeHandler({ fetch }, { onerror: console.error }));
http.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${http.address().port}/mcp`));
