// What the upstream server offers: what the suite asks for by name, once more, with the official SDK. It is written for
// 2026-07-28, and the SDK asks in its stead where there are sessions.

import { MissingRequiredClientCapabilityError, ProtocolError, inputRequired } from '@modelcontextprotocol/server';
import { setTimeout as sleep } from 'node:timers/promises';

// A picture of one point, and a sound of one sample.
const PNG =
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';
// Between two words of a tool that says something.
const BEAT_MS = 50;

const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const text = (words) => ({ type: 'text', text: words });
const embedded = (uri, mimeType, words) => ({ type: 'resource', resource: { uri, mimeType, text: words } });
const answer = (...content) => ({ content });
const said = (words) => answer(text(words));
const failed = (words) => ({ ...said(words), isError: true });
const user = (...content) => ({ messages: content.map((block) => ({ role: 'user', content: block })) });

const object = (properties, required = Object.keys(properties)) => ({ type: 'object', properties, required });
const field = (name, type) => object({ [name]: { type } });
const form = (message, requestedSchema) => inputRequired.elicit({ message, requestedSchema });
const sample = (words, maxTokens) =>
    inputRequired.createMessage({ messages: [{ role: 'user', content: text(words) }], maxTokens });
const roots = () => inputRequired.listRoots();
const content = (response, name) => response?.content?.[name] ?? 'unknown';

const NOTHING = { type: 'object', properties: {} };
const tool = (name, description, run, inputSchema = NOTHING) => ({ name, description, inputSchema, run });

/** A tool that asks `questions`, and says what `tell` makes of the responses. */
const asking = (name, description, questions, tell, inputSchema) =>
    tool(
        name,
        description,
        (given, ctx) => {
            const responses = ctx.mcpReq.inputResponses;
            return responses ? said(tell(responses)) : inputRequired({ inputRequests: questions(given, ctx) });
        },
        inputSchema,
    );

/** The same, with a state that comes back. `seal` makes one that cannot be forged. */
const keeping = (name, description, seal, questions, tell) =>
    tool(name, description, async (_given, ctx) => {
        const [responses, state] = [ctx.mcpReq.inputResponses, ctx.mcpReq.requestState()];
        if (responses && state?.tool === name) return said(tell(responses));
        return inputRequired({ inputRequests: questions(ctx), requestState: await seal({ tool: name }) });
    });

const outcome = (what, { action, content }) => `${what}: action=${action}, content=${JSON.stringify(content ?? {})}`;

const contents = [
    // The suite calls the first tool of the list to see what it makes of headers.
    tool('a_simple_text', 'Answers with text.', () => said('This is the first tool.')),
    tool('test_simple_text', 'Answers with text.', () => said('This is a simple text response for testing.')),
    tool('test_image_content', 'Answers with a picture.', () => answer(image)),
    tool('test_audio_content', 'Answers with a sound.', () =>
        answer({ type: 'audio', data: WAV, mimeType: 'audio/wav' }),
    ),
    tool('test_embedded_resource', 'Answers with a resource.', () =>
        answer(embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')),
    ),
    tool('test_multiple_content_types', 'Answers with text, a picture and a resource.', () =>
        answer(
            text('Multiple content types test:'),
            image,
            embedded('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
        ),
    ),
    tool('test_error_handling', 'Fails.', () => failed('This tool intentionally returns an error for testing')),
    tool(
        'json_schema_2020_12_tool',
        'Has a schema with much of JSON Schema 2020-12 in it.',
        (given) => said(JSON.stringify(given)),
        {
            $schema: 'https://json-schema.org/draft/2020-12/schema',
            type: 'object',
            $defs: {
                address: {
                    $anchor: 'addressDef',
                    type: 'object',
                    properties: { street: { type: 'string' }, city: { type: 'string' } },
                },
            },
            properties: {
                name: { type: 'string' },
                address: { $ref: '#/$defs/address' },
                contactMethod: { type: 'string', enum: ['phone', 'email'] },
                phone: { type: 'string' },
                email: { type: 'string' },
            },
            allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
            if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
            then: { required: ['phone'] },
            else: { required: ['email'] },
            additionalProperties: false,
        },
    ),
    tool(
        'test_region',
        'Has a parameter that is in a header too.',
        (given) => said(JSON.stringify(given)),
        object({ region: { type: 'string', 'x-mcp-header': 'Region' } }),
    ),
];

const talking = [
    tool('test_tool_with_logging', 'Logs while it runs.', async (_given, ctx) => {
        for (const words of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
            await ctx.mcpReq.log('info', words);
            await sleep(BEAT_MS);
        }
        return said('Tool with logging executed successfully');
    }),
    tool('test_logging_tool', 'Logs once.', async (_given, ctx) => {
        await ctx.mcpReq.log('info', 'a word', 'test');
        return said('Logging evaluated');
    }),
    tool('test_tool_with_progress', 'Says how far it is.', async (_given, ctx) => {
        for (const progress of [0, 50, 100]) {
            await advance(ctx, progress, `Completed step ${progress} of 100`);
            await sleep(BEAT_MS);
        }
        return said('Progress completed');
    }),
    tool('test_missing_capability', "Needs the client's model.", (_given, ctx) => {
        const client = ctx.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'];
        if (client && !client.sampling) {
            throw new MissingRequiredClientCapabilityError({ requiredCapabilities: { sampling: {} } });
        }
        return said('Success');
    }),
    tool('test_reconnection', 'Closes its stream and answers on the next.', async (_given, ctx) => {
        await ctx.mcpReq.log('info', 'It takes a while');
        ctx.http?.closeSSE?.();
        await sleep(2 * BEAT_MS);
        return said('Reconnection test completed successfully');
    }),
];

async function advance(ctx, progress, message) {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    if (progressToken === undefined) return;
    await ctx.mcpReq.notify({
        method: 'notifications/progress',
        params: { progressToken, progress, total: 100, message },
    });
}

const defaults = object(
    {
        name: { type: 'string', description: 'User name', default: 'John Doe' },
        age: { type: 'integer', description: 'User age', default: 30 },
        score: { type: 'number', description: 'User score', default: 95.5 },
        status: {
            type: 'string',
            description: 'User status',
            enum: ['active', 'inactive', 'pending'],
            default: 'active',
        },
        verified: { type: 'boolean', description: 'Verification status', default: true },
    },
    [],
);
const titled = ['First', 'Second', 'Third'].map((title, at) => ({ const: `value${at + 1}`, title: `${title} Option` }));
const options = { type: 'string', enum: ['option1', 'option2', 'option3'] };
const enums = object(
    {
        untitledSingle: { ...options, description: 'Select one option' },
        titledSingle: { type: 'string', description: 'Select one option with titles', oneOf: titled },
        legacyEnum: {
            type: 'string',
            description: 'Select one option (legacy)',
            enum: ['opt1', 'opt2', 'opt3'],
            enumNames: ['Option One', 'Option Two', 'Option Three'],
        },
        untitledMulti: { type: 'array', description: 'Select several', minItems: 1, maxItems: 3, items: options },
        titledMulti: {
            type: 'array',
            description: 'Select several with titles',
            minItems: 1,
            maxItems: 3,
            items: { anyOf: titled },
        },
    },
    [],
);

const questions = (seal) => [
    asking(
        'test_sampling',
        "Asks the client's model.",
        ({ prompt }) => ({ model: sample(prompt, 100) }),
        ({ model }) => `LLM response: ${model.content?.text}`,
        field('prompt', 'string'),
    ),
    asking(
        'test_elicitation',
        'Asks the person.',
        ({ message }) => ({ person: form(message, field('response', 'string')) }),
        ({ person }) => outcome('User response', person),
        field('message', 'string'),
    ),
    asking(
        'test_elicitation_sep1034_defaults',
        'Asks by a form.',
        () => ({ person: form('Please review and update the form fields with defaults', defaults) }),
        ({ person }) => outcome('Elicitation completed', person),
    ),
    asking(
        'test_elicitation_sep1330_enums',
        'Asks by a form.',
        () => ({ person: form('Please select options from the enum fields', enums) }),
        ({ person }) => outcome('Elicitation completed', person),
    ),
    asking(
        'test_input_required_result_elicitation',
        'Asks for a name.',
        () => ({ user_name: form('What is your name?', field('name', 'string')) }),
        ({ user_name }) => `Hello, ${content(user_name, 'name')}!`,
    ),
    asking(
        'test_input_required_result_sampling',
        "Asks the client's model.",
        () => ({ capital_question: sample('What is the capital of France?', 100) }),
        ({ capital_question }) => capital_question.content?.text,
    ),
    asking(
        'test_input_required_result_list_roots',
        'Asks for roots.',
        () => ({ client_roots: roots() }),
        ({ client_roots }) => `Found ${client_roots.roots.length} root(s)`,
    ),
    keeping(
        'test_input_required_result_request_state',
        'Has a state.',
        seal,
        () => ({ confirm: form('Please confirm', field('ok', 'boolean')) }),
        () => 'state-ok: the state came back',
    ),
    keeping(
        'test_input_required_result_tampered_state',
        'Has a sealed state.',
        seal,
        () => ({ confirm: form('Please confirm', field('ok', 'boolean')) }),
        () => 'integrity-ok: state verified',
    ),
    keeping(
        'test_input_required_result_multiple_inputs',
        'Asks three at once.',
        seal,
        () => ({
            user_name: form('What is your name?', field('name', 'string')),
            greeting: sample('Generate a greeting', 50),
            client_roots: roots(),
        }),
        ({ user_name, greeting, client_roots }) =>
            [
                `Name: ${content(user_name, 'name')}`,
                `Greeting: ${greeting.content?.text}`,
                `Roots: ${client_roots.roots.length}`,
            ].join('; '),
    ),
    tool('test_input_required_result_multi_round', 'Asks twice.', async (_given, ctx) => {
        const [responses, state] = [ctx.mcpReq.inputResponses ?? {}, ctx.mcpReq.requestState() ?? {}];
        if (state.name && responses.step2) {
            return said(`Multi-round complete for ${state.name} who likes ${content(responses.step2, 'color')}`);
        }
        const name = responses.step1 && content(responses.step1, 'name');
        const step = name
            ? { step2: form('Step 2: What is your favorite color?', field('color', 'string')) }
            : { step1: form('Step 1: What is your name?', field('name', 'string')) };
        return inputRequired({ inputRequests: step, requestState: await seal({ name }) });
    }),
    keeping(
        'test_input_required_result_capabilities',
        'Asks what the client can answer.',
        seal,
        (ctx) => {
            const client = ctx.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'];
            return {
                ...((!client || client.elicitation) && {
                    elicit_input: form('Elicitation input', field('value', 'string')),
                }),
                ...((!client || client.sampling) && { sample_input: sample('Sample request', 50) }),
            };
        },
        (responses) => `capabilities-ok: ${Object.keys(responses).length} answered`,
    ),
    tool('test_streaming_elicitation', 'Asks, after a word.', async (_given, ctx) => {
        if (ctx.mcpReq.inputResponses) return said('Streaming complete');
        await advance(ctx, 50);
        return inputRequired({ inputRequests: { go_on: form('Go on?', field('ok', 'boolean')) } });
    }),
];

// They know nothing of tasks: whoever wraps them makes them such.
const slow = [
    tool('greet', 'Greets.', ({ name }) => said(`Hello, ${name}!`), field('name', 'string')),
    tool(
        'slow_compute',
        'Takes a while.',
        async ({ seconds, label = '' }, ctx) => {
            await sleep(seconds * 1000, undefined, { signal: ctx.mcpReq.signal });
            return said(`${label} computed in ${seconds} s`);
        },
        object({ seconds: { type: 'number' }, label: { type: 'string' } }, ['seconds']),
    ),
    tool('failing_job', 'Fails after a second.', async () => {
        await sleep(1000);
        return failed('The job failed');
    }),
    tool('protocol_error_job', 'Fails with a protocol error.', () => {
        throw new ProtocolError(-32603, 'The job broke');
    }),
    asking(
        'confirm_delete',
        'Asks before it deletes.',
        ({ filename }) => ({ sure: form(`Delete ${filename}?`, field('confirm', 'boolean')) }),
        ({ sure }) => (sure.content?.confirm === true ? 'Deleted it' : 'Kept it'),
        field('filename', 'string'),
    ),
    asking(
        'multi_input',
        'Asks two questions at once.',
        () => {
            // The suite gives each of them the same answer.
            const either = object({ name: { type: 'string' }, confirm: { type: 'boolean' } }, []);
            return { first: form('The first?', either), second: form('The second?', either) };
        },
        (responses) => `${Object.keys(responses).length} answers`,
    ),
];

const argument = (name, description) => ({ name, description, required: true });
const prompts = [
    {
        name: 'test_simple_prompt',
        description: 'Has no arguments.',
        get: () => user(text('This is a simple prompt for testing.')),
    },
    {
        name: 'test_prompt_with_arguments',
        description: 'Has arguments.',
        arguments: [argument('arg1', 'The first'), argument('arg2', 'The second')],
        get: ({ arg1, arg2 }) => user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
        complete: { arg1: ['paris', 'park', 'party'] },
    },
    {
        name: 'test_prompt_with_embedded_resource',
        description: 'Has a resource.',
        arguments: [argument('resourceUri', 'Which')],
        get: ({ resourceUri }) =>
            user(
                embedded(resourceUri, 'text/plain', 'Embedded resource content for testing.'),
                text('Please process the embedded resource above.'),
            ),
    },
    {
        name: 'test_prompt_with_image',
        description: 'Has a picture.',
        get: () => user(image, text('Please analyze the image above.')),
    },
    {
        name: 'test_input_required_result_prompt',
        description: 'Asks for what it needs.',
        get: (_given, ctx) => {
            const responses = ctx.mcpReq.inputResponses;
            if (responses) return user(text(`Prompt with context: ${content(responses.user_context, 'context')}`));
            const question = form('What context should the prompt use?', field('context', 'string'));
            return inputRequired({ inputRequests: { user_context: question } });
        },
    },
];

const resource = (name, mimeType, description, rest) => ({
    uri: `test://${name}`,
    name,
    mimeType,
    description,
    contents: [{ uri: `test://${name}`, mimeType, ...rest }],
});
export const resources = [
    resource('static-text', 'text/plain', 'Text that never changes.', {
        text: 'This is the content of the static text resource.',
    }),
    resource('static-binary', 'image/png', 'A picture that never changes.', { blob: PNG }),
    resource('watched-resource', 'text/plain', 'Text that may be watched.', { text: 'Watched.' }),
];
export const templates = [
    {
        uriTemplate: 'test://template/{id}/data',
        name: 'template',
        mimeType: 'application/json',
        description: 'Data by id.',
        read(uri) {
            const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
            const data = { id, templateTest: true, data: `Data for ID: ${id}` };
            return id && [{ uri, mimeType: 'application/json', text: JSON.stringify(data) }];
        },
        complete: { id: ['1', '12', '123'] },
    },
];

/** What is on offer; two of the tools change that, and `changed` hears of it. */
export function offer(seal, changed) {
    const extra = { tools: false, prompts: false };
    const change = (list, name, description) =>
        tool(name, description, () => {
            extra[list] = !extra[list];
            changed(list);
            return said('Mutation triggered');
        });
    const all = [
        ...contents,
        ...talking,
        ...questions(seal),
        ...slow,
        change('tools', 'test_trigger_tool_change', 'Changes the list of tools.'),
        change('prompts', 'test_trigger_prompt_change', 'Changes the list of prompts.'),
    ];
    const come = tool('test_extra_tool', 'Comes and goes.', () => said('here'));
    const here = { name: 'test_extra_prompt', description: 'Comes and goes.', get: () => user(text('here')) };
    return {
        tools: () => (extra.tools ? [...all, come] : all),
        prompts: () => (extra.prompts ? [...prompts, here] : prompts),
    };
}
