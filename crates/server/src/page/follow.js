// Follows the end of the conversation while the reader is there, and only then; a button leads back to it.
//
// Only the reader ends following: by wheel, touch, keys or the scroll bar. The browser moves a page up by itself where
// something folds away, and says so late, when the page may have grown again.

const NEAR = 24;
/// How long after the reader's last movement a scroll is theirs, in milliseconds.
const MOVING = 400;
const KEYS = new Set(["ArrowUp", "PageUp", "Home", "Tab", " ", "F3"]);

export class Follow {
  constructor(scroller, jump) {
    this.scroller = scroller;
    this.jump = jump;
    this.following = true;
    this.last = 0;
    this.moved = -Infinity;
    this.held = false;
    const moves = () => { this.moved = performance.now(); };
    const passive = { passive: true };
    scroller.addEventListener("scroll", () => this.scrolled(), passive);
    scroller.addEventListener("wheel", moves, passive);
    scroller.addEventListener("touchmove", moves, passive);
    // The scroll bar is dragged, or text is marked beyond the edge.
    scroller.addEventListener("pointerdown", () => { this.held = true; }, passive);
    for (const kind of ["pointerup", "pointercancel"]) {
      addEventListener(kind, () => {
        if (this.held) moves();
        this.held = false;
      }, passive);
    }
    addEventListener("keydown", ({ key, ctrlKey, metaKey, target }) => {
      const finds = (ctrlKey || metaKey) && key === "f";
      const types = target instanceof Element && target.matches("textarea, input") && key !== "Tab";
      if (finds || (KEYS.has(key) && !types)) moves();
      // What is searched for is where the reader wants to be, however long it takes to type.
      if (finds || key === "F3") this.following = false;
    });
    jump.addEventListener("click", () => {
      this.toEnd();
      scroller.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.grown()).observe(scroller);
  }

  near() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  /// Whether the reader is moving the page.
  get moving() {
    return this.held || performance.now() - this.moved < MOVING;
  }

  /// Only going up ends following: growth leaves the end too, before it is followed.
  scrolled() {
    const { scrollTop } = this.scroller;
    if (this.near()) this.following = true;
    else if (scrollTop < this.last - 1 && this.moving) this.following = false;
    this.last = scrollTop;
    this.jump.hidden = this.following || this.near();
  }

  /// To be called when the conversation has grown. The reader may have gone up just now, before the browser says so.
  grown() {
    this.scrolled();
    if (this.following) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.last = this.scroller.scrollTop;
    }
    this.jump.hidden = this.near();
  }

  toEnd() {
    this.following = true;
    this.moved = -Infinity;
    this.last = 0;
    this.grown();
  }
}
