"""The folders of tasks: created before anybody else can enter, removed without following a link."""
