// Two example tools, to see a call, its result and the answer. What they return is made up, here, in the page.

function tool(name, description, properties) {
  const parameters = { type: "object", properties, required: Object.keys(properties) };
  return { type: "function", function: { name, description, parameters } };
}

const city = { type: "string", description: "City name" };

export const exampleTools = [
  tool("get_weather", "Get the current weather for a city", { city }),
  tool("get_time", "Get the current time in a city", { city }),
];

/// The made-up result of a call, as text.
export function exampleResult(name) {
  if (name === "get_weather") return JSON.stringify({ temperature: 21, unit: "celsius", condition: "sunny" });
  if (name === "get_time") return JSON.stringify({ time: "09:41" });
  return JSON.stringify({ error: "there is no such tool" });
}
