// Times in the viewer's zone, with UTC on hover; countdowns that count.

const DAY = 86_400_000;
const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
const DATE = { day: "numeric", month: "short" };
const SHORT = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const written = (parts) => new Intl.DateTimeFormat(undefined, parts);
const time = written({ ...SHORT, second: "2-digit" });
const both = written({ ...DATE, ...SHORT, second: "2-digit" });
const whole = written({ ...DATE, year: "numeric", ...SHORT, second: "2-digit" });
const day = written(DATE);
const exact = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const short = written(SHORT);

// The server's clock decides what "now" is, whatever the viewer's says.
const ahead = document.body.dataset.now ? Date.parse(document.body.dataset.now) - Date.now() : 0;
const now = () => Date.now() + ahead;

function local(moment) {
  const date = new Date(moment);
  if (date.toDateString() === new Date(now()).toDateString()) return time.format(date);
  return Math.abs(moment - now()) < 180 * DAY ? both.format(date) : whole.format(date);
}

function span(seconds) {
  const parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    if (count) parts.push(`${count} ${unit}`);
    else if (parts.length) break;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

function counted(element) {
  const seconds = Math.round((Date.parse(element.dateTime) - now()) / 1000);
  if (seconds === 0) return "now";
  return seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
}

// A clock that goes so many seconds ahead of the server's: an emulator's.
function shown(element) {
  return local(now() + element.dataset.clock * 1000);
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function localise(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    if ("countdown" in element.dataset) put(element, counted(element));
    else if ("clock" in element.dataset) put(element, shown(element));
    else if (!element.title) {
      element.title = element.textContent;
      put(element, local(Date.parse(element.dateTime)));
    }
  }
  for (const scale of root.querySelectorAll("svg.marks")) {
    const marks = [...scale.querySelectorAll("[data-mark]")];
    const days = marks.every((mark) => mark.textContent.includes(" "));
    for (const mark of marks) remark(mark, days);
  }
}

// A date stands at the viewer's own midnight; where marks are days apart, others say their time as well.
function remark(mark, days) {
  const date = new Date(mark.dataset.mark);
  const title = document.createElementNS(mark.namespaceURI, "title");
  title.textContent = mark.dataset.mark.replace("T", " ").replace("Z", " UTC");
  const midnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (mark.textContent.split(":").length > 2) put(mark, exact.format(date));
  else if (midnight) put(mark, day.format(date));
  else put(mark, days ? `${day.format(date)} ${short.format(date)}` : short.format(date));
  mark.append(title);
}

localise(document);
setInterval(() => {
  for (const element of document.querySelectorAll("time[data-countdown]")) put(element, counted(element));
  for (const element of document.querySelectorAll("time[data-clock]")) put(element, shown(element));
}, 1000);
