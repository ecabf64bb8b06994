// Validates an AsyncAPI document: node deploy/asyncapi.js FILE (make check-packages).
const { readFileSync } = require("fs");
const { Parser } = require("@asyncapi/parser");

new Parser().validate(readFileSync(process.argv[2], "utf8")).then(found => {
  const bad = found.filter(d => d.severity <= 1); // errors and warnings
  for (const d of bad) console.log(`${d.severity ? "warning" : "error"} ${d.path.join(".")}: ${d.message}`);
  process.exit(bad.length ? 1 : 0);
});
