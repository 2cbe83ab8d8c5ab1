// Paints what grows at a pace that leaves the page usable: at most every `PAUSE`, and at most a fifth of the time.

const PAUSE = 40;
const SHARE = 4;

export class Painter {
  /// `step` paints some of what has come and says whether there is more.
  constructor(step) {
    this.step = step;
    this.timer = null;
    this.ready = 0;
  }

  /// Something has come.
  wake() {
    this.timer ??= setTimeout(() => this.paint(), Math.max(0, this.ready - performance.now()));
  }

  /// Paints what there is without waiting for the turn.
  now() {
    clearTimeout(this.timer);
    this.paint();
  }

  paint() {
    const begin = performance.now();
    this.timer = null;
    const more = this.step();
    const end = performance.now();
    this.ready = end + Math.max(PAUSE, SHARE * (end - begin));
    if (more) this.wake();
  }
}
