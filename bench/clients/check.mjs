// The official Node clients against a running server: openai (both protocols), anthropic, and the Vercel AI SDK with
// its three providers.
//
//   node check.mjs http://127.0.0.1:8080
//
// What is checked is said in check.py; here the emphasis is on the helpers of these libraries, which are stricter
// about streams than the Python ones.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const url = process.argv[2];
const model = "demo";
const city = { type: "object", properties: { city: { type: "string", description: "City name" } }, required: ["city"] };
const description = "Get the current weather for a city";
const question = "What is the weather in Tokyo?";
const two = "Compare the weather in Milan and Manila.";
const result = "21 degrees, sunny";
const factors = "What is 255 factored?";
const story = "Write a short story about Rosa the fox and Max the frog.";
const failures = [];

function check(name, holds, shown = "") {
  console.log(holds ? `ok   ${name}` : `FAIL ${name}: ${JSON.stringify(shown)}`);
  if (!holds) failures.push(name);
}

const user = (content) => [{ role: "user", content }];

async function idleSoon(name) {
  const running = async () => (await (await fetch(`${url}/status`)).json()).running.length;
  const deadline = Date.now() + 2000;
  while (Date.now() < deadline && (await running())) await new Promise((resolve) => setTimeout(resolve, 20));
  check(name, !(await running()));
}

async function openaiChat() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const plain = { model, temperature: 0, chat_template_kwargs: { enable_thinking: false } };
  const tools = [{ type: "function", function: { name: "get_weather", description, parameters: city } }];
  const whole = await client.chat.completions.create({ ...plain, messages: user(factors) });
  const text = whole.choices[0].message.content;
  check("openai chat whole", text.includes("3 × 5 × 17"), whole);
  const stream = client.chat.completions.stream({ ...plain, messages: user(factors), stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  check("openai chat streamed", final.choices[0].message.content === text, final);
  check("openai chat streamed usage", final.usage.total_tokens === whole.usage.total_tokens, final.usage);
  const asked = [];
  const runner = client.chat.completions.runTools({
    ...plain,
    stream: true,
    messages: user(question),
    tools: [{
      type: "function",
      function: {
        name: "get_weather", description, parameters: city, parse: JSON.parse,
        function: (given) => { asked.push(given); return result; },
      },
    }],
  });
  check("openai chat loop", (await runner.finalContent()).includes("21"), asked);
  check("openai chat loop arguments", JSON.stringify(asked) === '[{"city":"Tokyo"}]', asked);
  const both = await client.chat.completions.create({ ...plain, messages: user(two), tools });
  check("openai chat parallel", both.choices[0].message.tool_calls.length === 2, both);
  const error = await client.chat.completions.create({ ...plain, messages: [] }).catch((error) => error);
  check("openai chat error", error instanceof OpenAI.BadRequestError && error.param === "messages", error);
  const leaving = await client.chat.completions.create({ ...plain, messages: user(story), stream: true });
  for await (const _ of leaving) break;
  await idleSoon("openai chat leaving");
}

async function openaiResponses() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const plain = { model, temperature: 0, reasoning: { effort: "none" } };
  const tools = [{ type: "function", name: "get_weather", description, parameters: city, strict: false }];
  const whole = await client.responses.create({ ...plain, input: factors });
  check("openai responses whole", whole.output_text.includes("3 × 5 × 17"), whole);
  const final = await client.responses.stream({ ...plain, input: factors }).finalResponse();
  check("openai responses streamed", final.output_text === whole.output_text, final);
  const input = user(question);
  const first = await client.responses.stream({ ...plain, input, tools }).finalResponse();
  const call = first.output.find((item) => item.type === "function_call");
  check("openai responses call", call?.arguments && JSON.parse(call.arguments).city === "Tokyo", first.output);
  input.push(...first.output, { type: "function_call_output", call_id: call.call_id, output: result });
  const second = await client.responses.create({ ...plain, input, tools });
  check("openai responses loop", second.output_text.includes("21"), second.output);
  check("openai responses loop cached", second.usage.input_tokens_details.cached_tokens > 0, second.usage);
  const thought = await client.responses.create({ ...plain, input: factors, reasoning: { effort: "medium" } });
  check("openai responses thinking", thought.output[0].type === "reasoning", thought.output);
}

async function anthropicMessages() {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const plain = { model, max_tokens: 300, temperature: 0 };
  const tools = [{ name: "get_weather", description, input_schema: city }];
  const whole = await client.messages.create({ ...plain, messages: user(factors) });
  check("anthropic whole", whole.content[0].text.includes("3 × 5 × 17"), whole);
  const final = await client.messages.stream({ ...plain, messages: user(factors) }).finalMessage();
  check("anthropic streamed", final.content[0].text === whole.content[0].text, final);
  const messages = user(question);
  const first = await client.messages.stream({ ...plain, messages, tools }).finalMessage();
  const call = first.content.at(-1);
  check("anthropic call", call.type === "tool_use" && call.input.city === "Tokyo", first);
  const told = { type: "tool_result", tool_use_id: call.id, content: result };
  messages.push({ role: "assistant", content: first.content }, { role: "user", content: [told] });
  const second = await client.messages.create({ ...plain, messages, tools });
  check("anthropic loop", second.content[0].text.includes("21"), second);
  check("anthropic loop cached", second.usage.cache_read_input_tokens > 0, second.usage);
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const thought = await client.messages.stream({ ...plain, max_tokens: 2000, temperature: 1, thinking, messages: user(factors) }).finalMessage();
  check("anthropic thinking", thought.content[0].type === "thinking", thought);
  const error = await client.messages.create({ ...plain, messages: [] }).catch((error) => error);
  check("anthropic error", error instanceof Anthropic.BadRequestError, error);
  const leaving = client.messages.stream({ ...plain, messages: user(story) });
  await new Promise((resolve) => leaving.on("text", resolve));
  leaving.abort();
  await leaving.done().catch(() => {});
  await idleSoon("anthropic leaving");
}

async function aiSdk() {
  const compatible = createOpenAICompatible({ name: "flashmoe", baseURL: `${url}/v1`, supportsStructuredOutputs: true, includeUsage: true });
  const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
  const models = { compatible: compatible(model), openai: openai.responses(model), anthropic: anthropic(model) };
  // Without `store: false` this provider refers to items instead of sending them.
  const off = { flashmoe: { reasoningEffort: "none" }, openai: { store: false } };
  const plain = { temperature: 0, maxRetries: 0, maxOutputTokens: 300, providerOptions: off };
  for (const [name, served] of Object.entries(models)) {
    const asked = [];
    const weather = tool({
      description,
      inputSchema: z.object({ city: z.string().describe("City name") }),
      execute: async (given) => { asked.push(given); return result; },
    });
    const whole = await generateText({ ...plain, model: served, prompt: factors });
    check(`ai ${name} whole`, whole.text.includes("3 × 5 × 17"), whole.text);
    const stream = streamText({ ...plain, model: served, prompt: factors });
    check(`ai ${name} streamed`, (await stream.text) === whole.text, await stream.text);
    const usage = await stream.usage;
    check(`ai ${name} usage`, usage.inputTokens > 0 && usage.outputTokens > 0, usage);
    const agent = streamText({ ...plain, model: served, prompt: question, tools: { get_weather: weather }, stopWhen: stepCountIs(4) });
    const answer = await agent.text;
    check(`ai ${name} loop`, answer.includes("21") && asked[0]?.city === "Tokyo", { answer, asked });
    const schema = z.object({ name: z.string(), age: z.number() });
    const prompt = "Extract age, name as JSON: Greta is 58 years old and lives in Accra.";
    const object = await generateObject({ ...plain, model: served, schema, prompt }).catch((error) => error);
    check(`ai ${name} object`, object.object?.name !== undefined, String(object.message ?? object.object));
  }
}

process.on("unhandledRejection", (error) => check("nothing is left unhandled", false, String(error)));
for (const part of [openaiChat, openaiResponses, anthropicMessages, aiSdk]) {
  try {
    await part();
  } catch (error) {
    console.log(error);
    check(`${part.name} to its end`, false, String(error));
  }
}
if (failures.length) {
  console.log(`${failures.length} failed: ${failures.join(", ")}`);
  process.exit(1);
}
